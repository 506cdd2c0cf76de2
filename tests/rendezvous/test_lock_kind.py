"""The rendezvous locks its register as the filesystem report says."""

from dataclasses import replace
from pathlib import Path

import filelock
import pytest

from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.rendezvous import Rendezvous
from hpcelastic.storage import files
from hpcelastic.storage.locks import LockKind
from tests.rendezvous.nodes import make_world


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        pytest.param(LockKind.NATIVE, ["FileLock"], id="native"),
        pytest.param(LockKind.SOFT, ["SoftFileLock"], id="soft"),
        pytest.param(LockKind.NONE, [], id="none"),
    ],
)
def test_a_round_forms_under_the_lock_of_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: LockKind, taken: list[str]
) -> None:
    world = make_world(tmp_path, 1, 1)
    node = world.node("n1")
    node.rendezvous = Rendezvous(world.backend, node.member.node, world.settings, world.clock, kind)
    used: set[str] = set()
    for name in ("FileLock", "SoftFileLock"):
        real = getattr(filelock, name)
        monkeypatch.setattr(
            filelock, name, lambda *args, name=name, real=real, **more: (used.add(name), real(*args, **more))[1]
        )
    node.member = replace(node.member, job="j", job_nodes=1)
    assert node.step().state.phase is Phase.RUNNING
    assert sorted(used) == taken
    assert len(files.names(world.paths.register)) >= 2
