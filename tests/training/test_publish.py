import errno
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from hpcelastic.backends.connect import open_agent_backend
from hpcelastic.errors import StoreError
from hpcelastic.protocol.codec import encode
from hpcelastic.protocol.settings import RendezvousSettings, Settings
from hpcelastic.rendezvous.run import open_run
from hpcelastic.storage.paths import RunPaths
from hpcelastic.training import claim, fence, publish
from tests.backends.servers import servers_of_every_backend
from tests.training.workers import become, become_nobody, drafts, listing, make_run


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    become_nobody(monkeypatch)


def test_a_complete_file_appears_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with publish(path) as file:
        file.write(b"{}")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"{}"
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_block_left_by_an_exception_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), publish(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_data_is_synced_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        calls.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        sync(descriptor)

    def record_rename(draft: Path, path: Path) -> None:
        calls.append("rename")
        rename(draft, path)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_rename)
    with publish(tmp_path / "a") as file:
        file.write(b"x")
    assert calls == ["sync file", "rename", "sync directory"]


def test_two_concurrent_writers_leave_the_complete_file_of_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with publish(path) as first:
        first.write(b"first, ")
        with publish(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"at length")
    assert path.read_bytes() == b"first, at length"


def test_the_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    with publish(tmp_path / "a"):
        pass
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "quota"), (errno.EROFS, "read-only"), (errno.EIO, "mounted")],
)
def test_an_error_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreError, match=f"{os.strerror(code)}.*{remedy}"), publish(tmp_path / "a"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="create the directory first"), publish(tmp_path / "missing" / "a"):
        pass


def test_a_directory_that_cannot_be_synced_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def refuse_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_directories)
    with publish(tmp_path / "a") as file:
        file.write(b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


# Publications of a round


LEFTOVER = r"newer round publishes in .*, so this worker of round {} is outdated and must stop"


def write(path: Path, content: str) -> None:
    with publish(path) as file:
        file.write(content.encode())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose register is in round 4."""
    return make_run(tmp_path / "run", round=4)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory for publications."""
    path = tmp_path / "out"
    path.mkdir()
    return path


def test_later_rounds_replace_earlier_ones(run: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for round in (2, 3, 5):
        make_run(run, round)
        become(monkeypatch, run, round)
        write(here / "latest", f"of {round}")
        assert (here / "latest").read_text() == f"of {round}"
        assert listing(here) == ["latest"]
        assert drafts(here) == []


def test_workers_of_one_round_do_not_exclude_each_other(run: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1, 0):
        become(monkeypatch, run, 4, rank)
        write(here / "latest", f"of rank {rank}")
    assert (here / "latest").read_text() == "of rank 0"


def test_an_older_round_with_a_cached_register_is_refused(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, run, 5)
    write(here / "latest", "of 5")
    become(monkeypatch, run, 4)  # the newest one in this worker's cached register
    with pytest.raises(StoreError, match=LEFTOVER.format(4)):
        write(here / "latest", "of 4")
    with pytest.raises(StoreError, match=LEFTOVER.format(4)):
        publish(here / "latest", to="run")
    with pytest.raises(StoreError, match=LEFTOVER.format(4)):
        claim(here)
    assert (here / "latest").read_text() == "of 5"


def test_an_older_round_is_refused_early(run: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(run, round=7)
    become(monkeypatch, run, 6)
    with pytest.raises(StoreError, match=r"^round 7 has formed; this worker of round 6 is outdated and must stop$"):
        write(here / "latest", "of 6")
    with pytest.raises(StoreError, match=r"^round 7 has formed"):
        claim(here)
    assert os.listdir(here) == []


@pytest.mark.parametrize("publication", ["file", "link"])
def test_a_claim_excludes_older_rounds(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch, publication: str
) -> None:
    replace = os.replace

    def claim_first(draft: Path, path: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        become(monkeypatch, run, 5)
        claim(here)
        replace(draft, path)

    become(monkeypatch, run, 4)
    write(here / "latest", "before")
    monkeypatch.setattr(os, "replace", claim_first)
    with pytest.raises(StoreError, match=LEFTOVER.format(4)):
        if publication == "file":
            write(here / "latest", "of 4")
        else:
            publish(here / "latest", to="elsewhere")
    assert (here / "latest").read_text() == "before"
    assert drafts(here) == []


def test_drafts_of_killed_workers_are_removed_with_their_round(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, run, 4)
    write(here / "latest", "of 4")
    (fenced,) = here.glob(".publishing-*")
    (fenced / "round-0004" / "latest.0a1b2c3d.draft").touch()
    (fenced / "revoked-0a1b2c3d").touch()
    become(monkeypatch, run, 5)
    claim(here)
    assert drafts(here) == []
    assert sorted(path.name for path in fenced.iterdir() if path.is_file()) == [f"round-000{n}" for n in (1, 2, 3, 4)]


def test_a_look_at_the_newest_round_leaves_no_connection_to_a_server(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers_of_every_backend(monkeypatch)["here:1"]
    paths = RunPaths(tmp_path / "run")
    paths.register.mkdir(parents=True)
    agent = open_agent_backend(paths, "r", RendezvousSettings(backend="theirs", endpoint="here:1"))
    state = open_run(agent, "r", Settings(), "test")
    become(monkeypatch, paths.root, round=1)
    claim(here)
    assert (server.readers, server.open) == (1, 1)
    agent.register("test").commit(1, encode(replace(state, round=2)))
    with pytest.raises(StoreError, match="round 2 has formed"):
        claim(here)
    assert (server.readers, server.open) == (2, 1)


def test_two_runs_do_not_exclude_each_other(tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, round in (("a", 5), ("b", 2), ("a", 5)):
        run = make_run(tmp_path / name, round)
        become(monkeypatch, run, round)
        write(here / "latest", name)
        assert (here / "latest").read_text() == name


def test_a_new_run_of_the_same_name_is_independent_of_the_old_one(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, run, 4)
    write(here / "latest", "of the old run")
    shutil.rmtree(run)
    make_run(run, round=1)
    write(here / "other", "of the leftover")
    become(monkeypatch, run, 1)
    write(here / "latest", "of the new run")
    assert (here / "latest").read_text() == "of the new run"
    assert len(list(here.glob(".publishing-*"))) == 2


def test_a_directory_without_a_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, tmp_path, 1)
    with pytest.raises(StoreError, match="holds no run; HPCELASTIC_RUN_DIR must name the directory of one"):
        write(tmp_path / "latest", "")


def test_outside_hpcelastic_a_claim_does_nothing(tmp_path: Path) -> None:
    claim(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_draft_that_appears_repeatedly_ends_the_claim(run: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, run, 4)
    write(here / "latest", "of 4")

    def late(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    monkeypatch.setattr(fence, "_EXCLUDE_TIMEOUT", 0.0)
    monkeypatch.setattr(os, "rmdir", late)
    become(monkeypatch, run, 5)
    with pytest.raises(StoreError, match=r"cannot claim .*: a worker of an older round keeps on writing"):
        claim(here)


# Links


@pytest.mark.parametrize("before", [None, "file", "link"])
def test_a_name_becomes_a_link(tmp_path: Path, before: str | None) -> None:
    (tmp_path / "step-100").mkdir()
    if before == "file":
        write(tmp_path / "latest", "a file")
    elif before == "link":
        publish(tmp_path / "latest", to="step-90")
    publish(tmp_path / "latest", to="step-100")
    assert os.readlink(tmp_path / "latest") == "step-100"
    assert (tmp_path / "latest").resolve() == tmp_path / "step-100"
    assert listing(tmp_path) == ["latest", "step-100"]


def test_a_directory_does_not_become_a_link(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(StoreError, match=r"cannot write .*latest: Is a directory"):
        publish(tmp_path / "latest", to="step-100")
    assert os.listdir(tmp_path) == ["latest"]


# Lost replies


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT], ids=errno.errorcode.get)
def test_a_rename_with_a_lost_reply_is_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    replace = os.replace

    def lose_the_reply(draft: Path, path: Path) -> None:
        replace(draft, path)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", lose_the_reply)
    write(tmp_path / "latest", "new")
    assert (tmp_path / "latest").read_text() == "new"


def test_a_missing_draft_is_not_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latest").write_text("old")

    def lose_the_draft(draft: Path, path: Path) -> None:
        os.unlink(draft)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "replace", lose_the_draft)
    with pytest.raises(StoreError, match="cannot write"):
        write(tmp_path / "latest", "new")
    assert (tmp_path / "latest").read_text() == "old"
