#!/bin/bash
# Install what the SLURM tests need, if anything is missing: Debian or Ubuntu, as root. Starts no service.
set -euo pipefail

packages=(slurmctld slurmd slurm-client iproute2 util-linux)
programs=(slurmctld slurmd srun sbatch scontrol squeue sinfo scancel ip unshare nsenter)
PATH=$PATH:/usr/sbin:/sbin

missing=()
for program in "${programs[@]}"; do
    command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]}" >&2
    echo "On Debian or Ubuntu, as root: apt-get install ${packages[*]}" >&2
    echo "Elsewhere: install SLURM's controller, node daemon and commands, iproute2 and util-linux." >&2
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
if ! { apt-get -q update && apt-get -q install -y --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -f "$log"
