"""`hpcelastic.store()`: one store for the whole run."""

import re
import subprocess
import sys
import threading
from itertools import chain
from pathlib import Path

import pytest

import hpcelastic
from hpcelastic.pytorch import RunStore
from hpcelastic.storage import files
from hpcelastic.storage.paths import RunPaths
from tests.training.workers import become, become_nobody

pytestmark = pytest.mark.slow


def test_only_rounds_of_the_same_run_share_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, tmp_path / "one", 1, 0)
    hpcelastic.store().set("seed", "7")
    assert hpcelastic.store() is hpcelastic.store()
    become(monkeypatch, tmp_path / "one", 5, 3)
    assert hpcelastic.store().get("seed") == b"7"
    assert RunStore(RunPaths(tmp_path / "one").facts).get("seed") == b"7", "as others open it"
    become(monkeypatch, tmp_path / "two", 5, 3)
    assert not hpcelastic.store().check(["seed"])


def test_outside_a_run_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    become_nobody(monkeypatch)
    with pytest.raises(hpcelastic.ConfigError, match=r"HPCELASTIC_RUN_DIR is not set; elsewhere, .*RunStore\("):
        hpcelastic.store()


def test_an_unusable_run_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    become(monkeypatch, tmp_path / "file", 1)
    with pytest.raises(hpcelastic.StoreError, match=str(tmp_path / "file" / "facts")):
        hpcelastic.store()


@pytest.mark.parametrize("first", ["hpcelastic.store()", "import hpcelastic.storage.files"], ids=["call", "package"])
def test_the_package_with_the_same_name_is_importable(first: str, tmp_path: Path) -> None:
    code = f"import hpcelastic; {first}; hpcelastic.store().set('a', '1'); from hpcelastic.storage import files"
    subprocess.run([sys.executable, "-c", code], env={"HPCELASTIC_RUN_DIR": str(tmp_path)}, check=True)
    assert RunStore(tmp_path / "facts").get("a") == b"1"
    assert files.names(tmp_path) == ["facts"]


def test_every_snippet_of_the_page_has_the_documented_result(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "store.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    shows = "print(first, shard, store.get('epochs'), store.check(['best']), dist.get_world_size())"
    place = {"HPCELASTIC_RUN_DIR": str(tmp_path), "HPCELASTIC_ROUND": "1", "RANK": "0", "WORLD_SIZE": "1"}
    code = "\n".join([*snippets, shows])
    done = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True)
    assert done.stdout == "True b'shard-0001' b'1' True 1\n", done.stderr
    assert any(key.startswith("round 1/") for key in RunStore(tmp_path / "facts").list_keys())


THREADS, EACH = 8, 20


def test_concurrent_threads_lose_no_addition(tmp_path: Path) -> None:
    """torch's watchdogs call the store from their own threads."""
    store, sums = RunStore(tmp_path), [list[int]() for _ in range(THREADS)]

    def add(mine: list[int]) -> None:
        mine.extend(store.add("n", 1) for _ in range(EACH))

    threads = [threading.Thread(target=add, args=(mine,)) for mine in sums]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chain.from_iterable(sums)) == list(range(1, THREADS * EACH + 1))
