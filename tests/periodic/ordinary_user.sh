#!/bin/bash
# Run the demo and the fast suites as an ordinary user, in a checkout and an environment of that user's own.
# As root: as user 65534 of this machine. Otherwise: as the user that is logged in.
set -euo pipefail

checkout=$(cd "$(dirname "$0")/../.." && pwd)
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
mkdir "$home/checkout"
cd "$checkout"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory "$home/checkout"

as_user=()
if [ "$(id -u)" -eq 0 ]; then
    chown -R 65534:65534 "$home"
    as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
fi
cd "$home/checkout"
unset CI
export HOME=$home TMPDIR=$home/tmp
"${as_user[@]}" mkdir "$TMPDIR"
"${as_user[@]}" make demo
"${as_user[@]}" .venv/bin/python -m pytest -q -n 2 --dist loadgroup \
    tests/agent tests/config tests/doctor tests/network tests/protocol tests/rendezvous tests/storage
