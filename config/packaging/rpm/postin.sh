# After unpacking: $1 is 1 at the first installation, more in an upgrade.
systemd-sysusers sluice.conf
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if [ "$1" -gt 1 ] && systemctl --quiet is-active sluice.service; then
        # The new version takes the sockets over and the old one drains. If it does not get ready, the old one goes on.
        sluice upgrade || echo "sluice: the old version keeps running; for the new one: systemctl restart sluice" >&2
    fi
fi
if [ "$1" -eq 1 ]; then
    echo "sluice: not started yet; edit /etc/sluice/sluice.yaml, then: systemctl enable --now sluice"
fi
