# After removal. Logs and state stay, as rpm has no purge: /var/log/sluice, /var/lib/sluice.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
