#!/bin/sh
# PID 1 of a guest: mounts the file systems, runs the parts, powers off. Output for the host goes to the serial line
# that replaces /dev/tests.
export PATH=/bin HOME=/root TMPDIR=/tmp SLUICE_LOG=info
mount -t devtmpfs dev /dev
exec >/dev/tests 2>&1 </dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
# Nothing is mounted over /tmp: the checkout may be below it.
chmod 1777 /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
ulimit -n 20000
for module in /modules/*; do
    insmod "$module" || echo "insmod $module: failed"
done

# Runs a part: its name, then its command.
part() {
    echo "== part $1"
    shift
    "$@"
    echo "== ended with $?"
}

. /parts.sh
part complaints sh -c 'dmesg | grep -E "BUG|WARNING|Oops|Call Trace|general protection|refcount_t"'
echo "== all, after $(cut -d " " -f 1 /proc/uptime) s of its own"
poweroff -f
