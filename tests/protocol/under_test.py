"""The code under test, loaded afresh so that a test can give it another filesystem or seed a fault in its text."""

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

DECIDE, ASSIGNMENT = "hpcelastic.protocol.decide", "hpcelastic.protocol.assignment"
LEASES, REGISTER = "hpcelastic.store.leases", "hpcelastic.store.register"
RENDEZVOUS = "hpcelastic.rendezvous.rendezvous"
MODULES = (DECIDE, ASSIGNMENT, LEASES, REGISTER, RENDEZVOUS)


_USED = {"decide", "LeaseObserver", "OwnLease", "Register"}
"""What the rendezvous has from the others."""


@dataclass(frozen=True)
class Patch:
    """One edit of a module's source: ``old`` must occur exactly once, so that a patch can't rot unnoticed."""

    module: str
    old: str
    new: str


@dataclass(frozen=True)
class Code:
    """Modules that the simulated nodes run."""

    decide: ModuleType
    assignment: ModuleType
    leases: ModuleType
    register: ModuleType
    rendezvous: ModuleType


def load(*patches: Patch, **names: object) -> Code:
    """Fresh copies of the modules with ``patches`` in their text.

    ``names`` take the place of what the others than the protocol's have imported under those names, the filesystem
    above all.
    """
    decide, assignment, leases, register, rendezvous = (
        _module(name, tuple(p for p in patches if p.module == name)) for name in MODULES
    )
    for module in (leases, register, rendezvous):
        vars(module).update({name: value for name, value in names.items() if name in vars(module)})
    for module in (decide, leases, register):  # fresh for the rendezvous too
        vars(rendezvous).update({name: value for name, value in vars(module).items() if name in _USED})
    return Code(decide, assignment, leases, register, rendezvous)


def _module(name: str, patches: tuple[Patch, ...]) -> ModuleType:
    module = ModuleType(name)
    exec(_compiled(name, patches), vars(module))
    return module


@cache
def _compiled(name: str, patches: tuple[Patch, ...]) -> CodeType:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text()
    for patch in patches:
        if text.count(patch.old) != 1:
            raise ValueError(f"{name}: {patch.old!r} occurs {text.count(patch.old)} times, not once")
        text = text.replace(patch.old, patch.new)
    return compile(text, spec.origin, "exec")
