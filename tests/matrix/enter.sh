#!/bin/bash
# Run a command in /src of a root directory that build.sh has built.
#
#   tests/matrix/enter.sh ROOT COMMAND...
#
# The command has mounts and processes of its own, and both end with it: nothing stays mounted in the root, and an
# interrupted command leaves no process. pivot_root, and not chroot: the hosts of a test cluster change how mounts
# propagate, which needs a root that is a mount point. What pip is told on this machine holds in the root too:
# its configuration, variables, certificates and folders of packages. /wheels is beside the root, and shared by all.
# /tmp is a new directory on the disk: virtual environments with a PyTorch for GPUs are too large for the memory.
set -euo pipefail

if [ "$1" != --inside ]; then
    exec unshare --mount --pid --fork --kill-child "$0" --inside "$@"
fi
shift
root=$(realpath "$1")
shift

bind() { # PATH: the same file or directory in the root
    if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root$(dirname "$1")" && touch "$root$1"; fi
    mount --bind "$1" "$root$1"
}

named_by_pip() { # files and directories that pip is told to use, one a line
    local value
    for value in $(python3 -m pip config list 2>/dev/null | sed "s/^[^=]*=//; s/'//g; s/\\\\n/ /g") ${SSL_CERT_FILE:-}; do
        value=${value#file://}
        value=${value%/simple} # an index points to the folders beside it
        case $value in /*) [ ! -e "$value" ] || echo "$value" ;; esac
    done | sort -u
}

mount --make-rprivate /
mount --rbind "$root" "$root"
for path in /sys /dev; do
    mkdir -p "$root$path"
    mount --rbind "$path" "$root$path"
done
for path in /etc/hosts /etc/resolv.conf $(named_by_pip); do bind "$path"; done
mkdir -p "$root/root/.config/pip" "$root/wheels" "$(dirname "$root")/wheels" "$root/src" "$root/.old" "$root/.tmp"
find "$root/.tmp" -mindepth 1 -maxdepth 1 -mtime +1 -exec rm -rf {} + # of commands that were killed
temporary=$(mktemp -d -p "$root/.tmp")
chmod 1777 "$temporary"
mount --bind "$temporary" "$root/tmp"
mount --bind "$(dirname "$root")/wheels" "$root/wheels"
for file in "$HOME/.pip/pip.conf" "$HOME/.config/pip/pip.conf"; do
    [ ! -e "$file" ] || cp "$file" "$root/root/.config/pip/pip.conf"
done
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
kept=()
while IFS= read -r variable; do kept+=("$variable"); done < <(
    env | grep -iE '^(PIP_[A-Z_]+|(HTTP|HTTPS|FTP|NO|ALL)_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE)=' || true
)

cd "$root"
pivot_root . .old
mount -t proc proc /proc
umount -l /.old
# The first process of a namespace has to wait for orphans, which bash does as long as it is not the command itself.
exec env -i "${kept[@]}" HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 CI=true DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash -c 'cd /src; "$@"; status=$?; find /tmp -mindepth 1 -delete; exit $status' enter "$@"
