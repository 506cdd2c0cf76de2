#!/bin/bash
# Process 1 of a guest, whose root is the host's / through hostfs, read-only. What has to be writable becomes memory.
# Arguments come from the kernel's command line as environment: name, address, guests (NAME:ADDRESS,...), keep
# (PATH:PATH..., shown as on the host wherever they lie), python.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for directory in /dev/shm /run /tmp /var/tmp /mnt; do
    mount -t tmpfs -o mode=1777 tmpfs "$directory"
done
IFS=: read -ra kept <<<"$keep"
for directory in "${kept[@]}"; do
    # Only what the memory has hidden: the checkout may lie in /tmp.
    [ -e "$directory" ] || { mkdir -p "$directory" && mount -t hostfs -o "ro,$directory" host "$directory"; }
done

# The host may have no /lib/modules to mount over, so all requests for modules, also of the kernel, come here.
mkdir -p /run/uml/lib
ln -s /usr/lib/uml/modules /run/uml/lib/modules
printf '#!/bin/sh\nexec /sbin/modprobe -d /run/uml "$@"\n' >/run/uml/modprobe
chmod 755 /run/uml/modprobe
echo /run/uml/modprobe >/proc/sys/kernel/modprobe

hostname "$name"
{ echo "127.0.0.1 localhost"; tr ':,' ' \n' <<<"$guests" | while read -r guest where; do echo "$where $guest"; done; } >/run/hosts
echo "hosts: files" >/run/nsswitch.conf # a query of a name server that cannot be reached takes seconds
mount --bind /run/hosts /etc/hosts
mount --bind /run/nsswitch.conf /etc/nsswitch.conf
ip -batch - <<END
link set lo up
addr add $address/24 dev vec0
link set vec0 up
END

# Lock recovery's daemon of NFS keeps its notes here, and both the server and the clients of version 3 need it.
if [ -d /var/lib/nfs ]; then
    mount -t tmpfs tmpfs /var/lib/nfs
    mkdir -p /var/lib/nfs/{sm,sm.bak,rpc_pipefs,v4recovery,nfsdcltrack} /run/rpcbind /run/lock
    touch /var/lib/nfs/{etab,rmtab,state}
    chown -R statd /var/lib/nfs/sm /var/lib/nfs/sm.bak
fi

env -i PATH="$PATH" HOME="$HOME" LANG="$LANG" MODPROBE_OPTIONS="-d /run/uml" PYTHONDONTWRITEBYTECODE=1 \
    "$python" -I -B "${0%/*}/commands.py" /dev/ttyS0 &
wait $! # meanwhile bash reaps the orphans that process 1 inherits
echo "the command server has ended, and so does the guest"
"$python" -I -B -c "import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)" # LINUX_REBOOT_CMD_POWER_OFF: reboot(2)
