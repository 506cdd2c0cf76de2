"""Runs a program that the kernel kills when its owner ends: ``owned_main.py OWNER_PID PROGRAM [ARGUMENT...]``."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2), <linux/prctl.h>


def main() -> None:
    owner, command = int(sys.argv[1]), sys.argv[2:]
    # The setting survives exec. If the owner has ended before, this process has another parent by now.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == owner:
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
