#!/bin/bash
# Install what the tests on real systems need, if anything is missing: Debian or Ubuntu, as root. Starts no service.
# With --weekly also what only the weekly tests need: GlusterFS, CephFS, SLURM's accounting with its database, and Grid
# Engine.
set -euo pipefail

# SLURM; namespaces and their networks; filesystems in user space; NFS, with kernels of its own; MooseFS. The compiler
# is for a small library that those kernels need on some processors. etcd, a server that the rendezvous may be kept in, and
# openssl, which makes certificates for it. promtool, of Prometheus, which tests alerts.
packages=(
    slurmctld slurmd slurm-client
    iproute2 util-linux
    fuse3
    user-mode-linux kmod nfs-kernel-server nfs-common rpcbind gcc libc6-dev
    moosefs-master moosefs-chunkserver moosefs-client
    etcd-server openssl
    prometheus
)
programs=(
    slurmctld slurmd srun sbatch scontrol squeue sinfo scancel
    ip unshare nsenter setpriv
    fusermount3
    linux.uml modprobe exportfs rpc.nfsd rpc.mountd mount.nfs rpc.statd rpcbind cc
    mfsmaster mfschunkserver mfsmount
    etcd openssl
    promtool
)
if [ "${1:-}" = --weekly ]; then
    packages+=(glusterfs-server ceph-common ceph-mon ceph-osd ceph-mds ceph-fuse slurmdbd mariadb-server-core
        gridengine-master gridengine-exec gridengine-client)
    programs+=(glusterd gluster glusterfs ceph monmaptool ceph-mon ceph-osd ceph-mds ceph-fuse slurmdbd mariadbd mariadb-install-db
        sge_qmaster sge_execd qsub)
fi
PATH=$PATH:/usr/sbin:/sbin

missing() {
    local program
    for program in "${programs[@]}"; do
        command -v "$program" >/dev/null || printf '%s ' "$program"
    done
}

[ -z "$(missing)" ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: $(missing)" >&2
    echo "On Debian or Ubuntu, as root: apt-get install ${packages[*]}" >&2
    echo "Elsewhere: install SLURM's controller, node daemon and commands, iproute2, util-linux, fuse3, user-mode Linux," >&2
    echo "kmod, NFS's server and client tools, a C compiler, MooseFS's master, chunk server and client, etcd, openssl and promtool." >&2
    exit 1
fi

# The packages would start their daemons; this file, while it is there, says no.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
install() {
    apt-get -q update || return
    local package known=()
    for package in "${packages[@]}"; do # not every release has all of them
        [ -z "$(apt-cache --quiet=0 madison "$package" 2>/dev/null)" ] || known+=("$package")
    done
    apt-get -q install -y --no-install-recommends "${known[@]}"
}
if ! install >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -f "$log"

if [ -n "$(missing)" ]; then
    echo "still missing, as this release has no package for it: $(missing)" >&2
    exit 1
fi
