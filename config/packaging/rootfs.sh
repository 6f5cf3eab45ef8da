#!/bin/sh
# Creates the root file system of the image: rootfs.sh BINARY FOLDER, run at the top of a clone. BINARY is linked
# statically, so the image has no library, no shell and no package. The script sets owners only when root runs it;
# `cargo xtask package --image` sets them in the layer.
set -eu
binary=$1
root=$2
umask 022

# The image of kamal-proxy uses this account number, so sluice can write to its volumes.
id=1001

install -D -m 0755 "$binary" "$root/usr/bin/sluice"
# Kamal runs this command in the container.
mkdir -p "$root/usr/local/bin"
ln -s /usr/bin/sluice "$root/usr/local/bin/kamal-proxy"

install -D -m 0644 config/packaging/container.yaml "$root/etc/sluice/sluice.yaml"
install -D -m 0644 config/sluice.schema.json "$root/usr/share/sluice/sluice.schema.json"
install -D -m 0644 LICENSE "$root/usr/share/doc/sluice/copyright"
# Certificate authorities, for TLS to endpoints and for ACME.
install -D -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

cat >"$root/etc/passwd" <<END
root:x:0:0:root:/:/sbin/nologin
sluice:x:$id:$id:sluice:/home/kamal-proxy:/sbin/nologin
END
cat >"$root/etc/group" <<END
root:x:0:
sluice:x:$id:
END
# Host names: first /etc/hosts, which the runtime writes, then DNS.
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"

mkdir -p "$root/dev" "$root/proc" "$root/sys"
mkdir -p -m 1777 "$root/tmp"
chmod 1777 "$root/tmp"
mkdir -p "$root/run/sluice" "$root/var/lib/sluice" "$root/var/log/sluice"
mkdir -p "$root/home/kamal-proxy/.config/kamal-proxy" "$root/home/kamal-proxy/.apps-config"
if [ "$(id -u)" -eq 0 ]; then
    chown -R "$id:$id" "$root/run/sluice" "$root/var/lib/sluice" "$root/var/log/sluice" "$root/home/kamal-proxy"
fi
