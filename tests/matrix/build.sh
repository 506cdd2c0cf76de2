#!/bin/bash
# Build a root directory of a Debian release, with its SLURM and its Python, unless it is there. Needs root and network.
#
#   tests/matrix/build.sh SUITE ROOT      SUITE is bookworm, trixie, sid, ...
#
# The mirror is the one that apt uses on this machine; MIRROR=URL names another. No service is started in the root.
set -euo pipefail
suite=$1 root=$2
here=$(cd "$(dirname "$0")" && pwd)
done=$root/.built

[ -e "$done" ] && exit 0
[ "$(id -u)" -eq 0 ] || { echo "build.sh: a root directory can be built by root only" >&2; exit 1; }

mirror=${MIRROR:-$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^Debian Debian //p' | head -n 1)}
[ -n "$mirror" ] || { echo "build.sh: apt has no Debian mirror; name one: MIRROR=http://..." >&2; exit 1; }
command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get -q install -y debootstrap

# A directory without the mark is what an interrupted build has left. Nothing is mounted in it: see enter.sh.
rm -rf --one-file-system "$root"
mkdir -p "$root"
unshare --mount debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror"

printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # no service is started
chmod 755 "$root/usr/sbin/policy-rc.d"
{
    apt-config dump | grep -E '^Acquire::(https?|ftp)::' || true # proxies
    echo 'Acquire::Check-Valid-Until "false";' # a mirror may be some days behind: the lists of sid are valid for a week
} >"$root/etc/apt/apt.conf.d/90matrix"

mkdir -p "$root/src/tests"
cp "$here/../install_system.sh" "$root/src/tests/"
"$here/enter.sh" "$root" bash -euc '
    apt-get -q update
    apt-get -q install -y --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev make git man-db procps
    tests/install_system.sh || echo "build.sh: tests that need what is missing are skipped in this root" >&2
    apt-get -q clean'
touch "$done"
