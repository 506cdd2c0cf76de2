"""Machines with their own kernels on this machine, by user-mode Linux."""

from tests.filesystems.uml.guest import Guest
from tests.filesystems.uml.kernel import needs_shim
from tests.filesystems.uml.serial_line import GuestProcess

__all__ = ["Guest", "GuestProcess", "needs_shim"]
