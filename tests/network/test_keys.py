import threading
from pathlib import Path

import pytest

from hpcelastic.errors import StoreError
from hpcelastic.network import make_key, shared_key


def test_keys_differ() -> None:
    assert len(make_key()) == 32
    assert make_key() != make_key()


def test_concurrent_callers_get_one_private_key(tmp_path: Path) -> None:
    path, keys = tmp_path / "key", []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        keys.append(shared_key(path))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8 and set(keys) == {shared_key(path)}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == keys[0].hex() + "\n"


@pytest.mark.parametrize("content", ["", "zz\n", "abcd\n", "ä" * 64], ids=["empty", "no hex", "short", "not ASCII"])
def test_a_damaged_key_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(StoreError, match=r"key: contains no key"):
        shared_key(path)
