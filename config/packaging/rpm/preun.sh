# Before removal: $1 is 0 if no version stays. Drains and ends; an upgrade leaves it running, for the new one to replace.
if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl --quiet disable --now sluice.service || true
fi
