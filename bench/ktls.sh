#!/usr/bin/env bash
# What TLS in the kernel costs, next to TLS in the program, on a kernel that has it: Debian's 6.12 in qemu, whose clock
# counts instructions. Prints the instructions per KiB of ktls/ktls.c. Needs root and apt; leaves nothing behind.
#     bench/ktls.sh
set -euo pipefail
source=$(cd "$(dirname "$0")" && pwd)/ktls/ktls.c
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
    qemu-system-x86 seabios busybox-static cpio kmod xz-utils gcc libc6-dev libssl-dev >/dev/null
cd "$work"
mkdir -p root/{bin,proc,sys,dev,tmp,modules}
gcc -O2 -static -pthread -w -o root/bin/ktls "$source" -lcrypto 2>/dev/null
package=$(apt-cache search '^linux-image-6\.12[.0-9+a-z-]*-cloud-amd64$' | cut -d' ' -f1 | sort -V | tail -1)
apt-get download -qq "$package" 2>/dev/null
dpkg -x "$package"_*.deb kernel
release=$(ls kernel/lib/modules)
depmod -b kernel "$release"
number=10
for module in ghash-clmulni-intel gcm aesni-intel tls; do
    modprobe -d kernel -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r file; do
    xz -dc "$file" >"root/modules/$number.ko"
    number=$((number + 1))
done
cp "$(command -v busybox)" root/bin/busybox
for applet in sh mount ip insmod poweroff uname grep; do ln -sf busybox "root/bin/$applet"; done
cat >root/init <<'INIT'
#!/bin/sh
export PATH=/bin
mount -t proc p /proc; mount -t devtmpfs d /dev; mount -t tmpfs t /tmp
ip link set lo up
for module in /modules/*.ko; do insmod $module; done
echo "RESULT kernel $(uname -r), $(grep -m1 -o 'generic-gcm[a-z0-9-]*' /proc/crypto)"
ktls
poweroff -f
INIT
chmod +x root/init
(cd root && find . | cpio -o -H newc 2>/dev/null) >root.cpio
timeout 900 qemu-system-x86_64 -accel tcg -cpu max,erms=off,fsrm=off -icount shift=0,sleep=off -rtc clock=vm -m 1024 \
    -nographic -no-reboot -kernel kernel/boot/vmlinuz* -initrd root.cpio \
    -append "console=ttyS0 panic=-1 quiet mitigations=off" | tr -d '\r' | sed -n 's/.*RESULT //p'
