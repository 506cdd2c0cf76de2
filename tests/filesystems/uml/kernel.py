"""A user-mode Linux kernel: an ordinary process outside, a separate machine inside.

It has its own namespaces. It is process 1 of a process namespace, so that its death ends all processes of its programs
at once, which would otherwise run on without a kernel. It has a private /dev/shm, where it keeps its memory, and the
network namespace of a switch.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.network import Switch
from tests.cluster.processes import ProcessHandle

_HERE = Path(__file__).parent
_DEATH_TIMEOUT = 20.0  # s

# Sources: getauxval(3), <linux/auxvec.h>. The size of a signal's frame is the XSAVE area and less than 1 KiB more.
_AT_MINSIGSTKSZ = 51
_LARGEST_FRAME = 2696 + 1024

_SHIM = "/dev/shm/xsave.so"

_MEMORY = """
set -e
shim=$1 source=$2 holder=$3; shift 3
mount -t tmpfs -o mode=1777 memory /dev/shm
[ -z "$shim" ] || cc -shared -fPIC -O1 -o "$shim" "$source" -ldl
exec unshare --pid bash -c "$holder" holder "$shim" "$@"
"""

# `unshare --pid` without --fork: the first child is process 1 of the new namespace, and $! is its id outside. Standard
# input ends with the process that started the kernel. Then this holder ends too, and so does the kernel.
_HOLDER = """
shim=$1 line=$2; shift 2
env LD_PRELOAD="$shim" setpriv --pdeathsig KILL "$@" </dev/null >&2 &
echo $!
exec >/dev/null {line}>&-
read -r _
"""


def needs_shim() -> bool:
    """Return whether this processor's XSAVE area is larger than such a kernel supports."""
    auxiliary = ctypes.CDLL(None).getauxval
    auxiliary.restype = ctypes.c_ulong
    return bool(auxiliary(_AT_MINSIGSTKSZ) > _LARGEST_FRAME)


@dataclass(frozen=True)
class Machine:
    """The parameters of a kernel. Its process 1 gets ``arguments`` as environment."""

    port: str
    """The switch's port for its network interface."""

    arguments: Mapping[str, str]
    memory: str
    shim: bool


class Kernel:
    """A kernel that runs from its creation until `kill`. ``line`` is the other end of its serial line, a descriptor."""

    def __init__(self, machine: Machine, switch: Switch, line: int) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the kernel's handle
        shim = _SHIM if machine.shim else ""
        setup = ["bash", "-c", _MEMORY, "memory", shim, str(_HERE / "xsave.c"), _HOLDER]
        self._holder = subprocess.Popen(
            [*switch.inside, "unshare", "--mount", *setup, str(line), *_command(machine, line)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            pass_fds=[line],
            start_new_session=True,
        )
        assert self._holder.stdout
        pid = self._holder.stdout.readline()
        if not pid.strip():
            self._release()
            raise ClusterError(f"no kernel was started:\n{self.console()}")
        self._process = ProcessHandle(int(pid))

    def console(self) -> str:
        """Return the output of the kernel and of its process 1."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT. Its programs stop with it, each at its next system call at the latest."""
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Power off without any message to other machines."""
        self._process.kill()
        if not self._process.wait(_DEATH_TIMEOUT):
            raise ClusterError(f"a guest's kernel still runs {_DEATH_TIMEOUT:g} s after SIGKILL")
        self._process.close()
        self._release()

    def _release(self) -> None:
        self._holder.kill()
        self._holder.communicate()


def _command(machine: Machine, line: int) -> list[str]:
    """The root is that of this machine, read-only through hostfs: a guest has all programs and the checkout."""
    return [
        "linux.uml",
        f"mem={machine.memory}",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "quiet",
        f"init={_HERE / 'init.sh'}",
        "uml_dir=/dev/shm/",
        f"vec0:transport=tap,ifname={machine.port},depth=64,gro=1",
        "con=null",
        "con0=null,fd:2",
        f"ssl0=fd:{line}",
        *(f"{name}={value}" for name, value in machine.arguments.items()),
    ]
