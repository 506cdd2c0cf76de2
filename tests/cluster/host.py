"""A host with its own network, host name, mounts, shared memory and processes, made of Linux namespaces.

Two processes make a host: a holder, which keeps the namespaces, and init, process 1 of the process namespace. When init
gets SIGKILL, the kernel kills all other processes of the host at once. The holder still keeps the network up, like a
kernel whose processes have all died: peers see connections reset, and new ones refused.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

from tests.cluster import processes
from tests.cluster.errors import ClusterError
from tests.cluster.network import Switch, prefix
from tests.cluster.processes import ProcessHandle
from tests.cluster.waiting import log_tails

KILL_TIMEOUT = 20.0  # s; the kernel kills a host's processes, so only an uninterruptible process takes long

# `unshare --pid` without --fork: the holder's first child is init of the new namespace, and $! is its id outside.
# Standard input ends with the process that started the host, and then init and holder end too.
_HOLDER = """
"$@" <&0 & echo $!; exec >/dev/null 2>&1
wait $!
read -r _
"""

# The host has a boot id of its own, which is new at every start. Host names come from files only: a query of a name
# server that cannot be reached takes 10 s. Bash, waiting in `read`, reaps the orphans that init inherits.
_INIT = """
set -e
name=$1 address=$2 prefix=$3 gateway=$4 dir=$5 setup=$6; shift 6
exec 2>>"$dir/log/$name.log"
case $address in *:*) nodad=" nodad";; *) nodad="";; esac  # IPv6 needs no test for duplicates here
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
echo "$name" >/proc/sys/kernel/hostname
mount --bind "$dir/hosts" /etc/hosts
mount --bind "$dir/nsswitch.conf" /etc/nsswitch.conf
cat /proc/sys/kernel/random/uuid >"$dir/boot_id.$name"
mount --bind "$dir/boot_id.$name" /proc/sys/kernel/random/boot_id
read -r plugged
ip -batch - <<END
link set lo up
addr add $address/$prefix dev eth0$nodad
link set eth0 up
route add default via $gateway
END
eval "$setup"
echo up; exec >/dev/null
"$@" </dev/null >>"$dir/log/$name.log" 2>&1 &
set +e
read -r end
"""


class Host:
    """A host that runs one daemon from `start` until `kill`. It can be started again.

    Its init executes the lines of `setup` with bash once the network is up. They may use $name, $address and $dir.
    """

    def __init__(
        self, name: str, address: str, daemon: list[str], switch: Switch, directory: Path, setup: str = ""
    ) -> None:
        self.name = name
        self.address = address
        self._daemon = daemon
        self._switch = switch
        self._directory = directory
        self._setup = setup
        self._holder: subprocess.Popen[str] | None = None
        self._init: ProcessHandle | None = None
        self._pid_namespace: str | None = None

    def start(self, env: dict[str, str]) -> None:
        self.close()
        network = [self.address, str(prefix(self.address)), self._switch.gateway]
        arguments = [self.name, *network, str(self._directory), self._setup, *self._daemon]
        namespaces = ["--net", "--uts", "--ipc", "--mount", "--pid"]
        command = ["unshare", *namespaces, "bash", "-c", _HOLDER, "holder", "bash", "-c", _INIT, "init", *arguments]
        self._holder = holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env
        )
        self._init = ProcessHandle(int(self._hear()))
        self._pid_namespace = processes.namespace(self._init.pid, "pid")
        self._switch.plug(self.name, self.address, self._init.pid)
        assert holder.stdin
        holder.stdin.write("plugged\n")
        holder.stdin.flush()
        # An ARP request for an address that does not answer yet is repeated only after a second.
        self._hear()

    def _hear(self) -> str:
        """Return the next line from the holder or init."""
        assert self._holder and self._holder.stdout
        if not (line := self._holder.stdout.readline()):
            raise ClusterError(f"host {self.name} did not start\n{log_tails(self._directory / 'log')}")
        return line

    @property
    def running(self) -> bool:
        return self._init is not None and not self._init.wait(0)

    def pids(self) -> set[int]:
        """Return the processes on this host, init included, by the process ids of this machine."""
        # Init's id may belong to another process once init has ended. So its namespace was recorded when it started.
        return processes.in_namespace(self._pid_namespace, "pid") if self.running and self._pid_namespace else set()

    @property
    def init_pid(self) -> int | None:
        return self._init.pid if self._init else None

    def kill(self) -> None:
        """Kill all processes of the host with SIGKILL. Return when all have ended."""
        if self._init is None:
            return
        self._init.kill()
        if not self._init.wait(KILL_TIMEOUT):
            raise ClusterError(f"host {self.name} still has processes {KILL_TIMEOUT:g} s after SIGKILL: {self.pids()}")

    def lose(self, address: str) -> None:
        """Send all frames for another host to a hardware address that nobody has."""
        neighbour = f"neigh replace {address} lladdr 02:00:00:00:00:00 dev eth0 nud permanent"
        subprocess.run(["nsenter", f"--net=/proc/{self.init_pid}/ns/net", "ip", *neighbour.split()], check=True)

    def cut(self) -> None:
        self._switch.cut(self.name)

    def heal(self) -> None:
        self._switch.heal(self.name)

    def close(self) -> None:
        """Kill the host and remove its namespaces and its cable."""
        try:
            self.kill()
        finally:
            self._release()

    def _release(self) -> None:
        if self._init is not None:
            self._init.close()
            self._init = None
        if self._holder is not None:
            self._holder.kill()
            with suppress(OSError):
                self._holder.communicate()
            self._holder = None
            # Sockets in their last retransmissions can keep a network namespace, and so the port, for another minute.
            self._switch.unplug(self.name)
