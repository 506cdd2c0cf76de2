"""A fork server learns what its workers import. Each test runs rounds of a script with packages that the test makes."""

import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcelastic.agent.environment import RunFacts, worker_environment
from hpcelastic.agent.guard_main import marked_processes
from hpcelastic.agent.settings import Entrypoint
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.storage.paths import RunPaths
from hpcelastic.worker import learned_imports
from hpcelastic.worker.learned_imports import ImportRecord, is_installed
from tests.agent.processes import TIMEOUT, eventually
from tests.agent.starting import Node, node

PRINT_PRELOADED = """
import sys
print(*sorted({'first', 'first.part', 'second', 'own'} & sys.modules.keys()), flush=True)
"""
WAIT = "import time\ntime.sleep(1000)\n"

Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes a node, which runs a script. The keywords are the installed packages."""
    installed, contexts = tmp_path / "installed", []

    def made_node(imports: str, **packages: str) -> Node:
        for name, text in packages.items():
            (installed / name).mkdir(parents=True)
            (installed / name / "__init__.py").write_text(text)
            (installed / name / "part.py").touch()
        (installed / "sitecustomize.py").write_text(
            f"import site\nsite.getusersitepackages = lambda: {str(installed)!r}\n"
        )
        (tmp_path / "train.py").write_text(PRINT_PRELOADED + imports + "\n" + WAIT)
        (tmp_path / "own.py").touch()
        environ = {**os.environ, "PYTHONPATH": str(installed)}
        contexts.append(node(tmp_path, Entrypoint(script=str(tmp_path / "train.py")), ("json",), environ=environ))
        return contexts[-1].__enter__()

    yield made_node
    for context in contexts:
        context.__exit__(None, None, None)


def run_until(made: Node, done: Callable[[], bool]) -> None:
    """Run a round, whose script waits, until ``done``."""
    group = made.start()
    made.attend(group)
    deadline = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < deadline
        made.turn(group, 0.1)
    group.stop(0.0)


def preloaded(made: Node) -> list[str]:
    """Run a round. Return the modules that its worker has found imported."""
    run_until(made, lambda: made.log("out") != "")
    return made.log("out").split()


def replaced(made: Node) -> Callable[[], bool]:
    """Return a function that tells whether the present fork server has been replaced."""
    assert made.fork_server is not None
    server, before = made.fork_server, made.fork_server.pid
    return lambda: server.pid != before


def test_installed_packages_are_imported_for_the_next_worker(make: Make) -> None:
    made = make(
        "import first.part, own\ntry:\n    import missing\nexcept ImportError:\n    import second", first="", second=""
    )
    run_until(made, replaced(made))
    assert made.log("out") == "\n"
    assert preloaded(made) == ["first", "first.part", "second"], "own belongs to the user, and may change"
    assert made.reports == []


UNSAFE = {
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "a native thread": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nsleep = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)\n"
        "thread = ctypes.c_ulong()\n"
        "libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)"
    ),
    "a device that reports in the fork": (
        "import os, sys, types\npid = os.getpid()\n"
        "sys.modules['torch.xpu'] = types.SimpleNamespace(_is_in_bad_fork=lambda: os.getpid() != pid)"
    ),
    "its rank": "import os\nrank = os.environ.get('RANK', '0')",
    "its round": "import os\nround = os.getenv('HPCELASTIC_ROUND')",
    "the address of the master": "import os\nfirst = 'MASTER_ADDR' in os.environ",
}


@pytest.mark.parametrize("text", UNSAFE.values(), ids=UNSAFE)
def test_a_package_that_makes_forks_unsafe_is_left_out(make: Make, text: str) -> None:
    made = make("import first.part, second", first=text, second="")
    run_until(made, replaced(made))
    assert preloaded(made) == ["second"]
    assert made.reports == []


def test_a_package_that_cannot_be_imported_is_left_out(make: Make) -> None:
    broken = "import os\nif 'RANK' not in [*os.environ]: raise SystemExit('no rank')"
    made = make("import first.part, second", first=broken, second="")
    run_until(made, replaced(made))
    assert preloaded(made) == ["second"]


CHANGES = {
    "a variable": "import os\nos.environ['CACHE'] = 'here'",
    "a removed variable": "import os\ndel os.environ['HOME']",
    "a variable of two lines": "import os\nos.environ['KEY'] = 'a\\nfirst'",
    "the import path": "sys.path.insert(0, '/srv/modules')",
    "a finder": "sys.meta_path.insert(0, type('Finder', (), {'find_spec': staticmethod(lambda *_: None)}))",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_is_learned_after_a_change_that_an_import_may_depend_on(make: Make, change: str) -> None:
    made = make(f"import first\n{change}\nimport second", first="", second="")
    run_until(made, replaced(made))
    assert preloaded(made) == ["first"]


def test_changes_that_packages_make_themselves_are_repeated(make: Make) -> None:
    made = make(
        "import first\nsys.path.append('/srv')\nimport second", first="import os\nos.environ['A'] = 'b'", second=""
    )
    run_until(made, replaced(made))
    assert preloaded(made) == ["first", "second"]


def test_output_of_an_import_is_written_by_each_worker(make: Make) -> None:
    made = make("import first", first="print('careful')")
    run_until(made, replaced(made))
    assert "careful" in made.log("out")
    run_until(made, lambda: "first" in made.log("out"))
    assert made.log("out") == "careful\nfirst\n"


def test_a_package_gets_the_exit_status_of_a_program_that_it_starts(make: Make) -> None:
    text = "import subprocess\nif subprocess.run(['false']).returncode != 1: raise SystemExit('it has not failed')"
    made = make("import first", first=text)
    run_until(made, replaced(made))
    assert preloaded(made) == ["first"]
    assert made.fork_server is not None
    children = Path(f"/proc/{made.fork_server.pid}/task/{made.fork_server.pid}/children")
    assert eventually(lambda: children.read_text() == ""), "no process is left, not even an ended one"


def test_imports_of_later_steps_are_learned_too(make: Make, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    made = make(f"import first\n{wait}\nimport second", first="", second="")
    once = replaced(made)
    group = made.start()
    made.attend(group)
    while not once():
        made.turn(group, TIMEOUT)
    twice = replaced(made)
    gate.touch()
    while not twice():
        made.turn(group, TIMEOUT)
    group.stop(0.0)
    assert preloaded(made) == ["first", "second"]


def slow_until(gate: Path) -> str:
    """Return a module whose import waits for a file, but not in a worker."""
    in_worker = "'HPCELASTIC_LOCAL_RANK' in [*os.environ]"
    return f"import os, time\nwhile not ({in_worker} or os.path.exists({str(gate)!r})): time.sleep(0.01)"


def others(made: Node) -> set[int]:
    """Return the processes of the node beside its fork server."""
    assert made.fork_server is not None
    return set(marked_processes(made.facts.node)) - {made.fork_server.pid}


def test_a_replacement_that_is_killed_is_forked_again(make: Make, tmp_path: Path) -> None:
    """The end of a round kills a replacement that is still importing, because it has the mark of the workers."""
    made = make("import first", first=slow_until(tmp_path / "gate"))
    run_until(made, lambda: len(others(made)) == 2)
    (tmp_path / "gate").touch()
    done = replaced(made)
    assert not done()
    run_until(made, done)
    assert preloaded(made) == ["first"]
    assert made.reports == []


def test_no_replacement_is_left_at_the_end(make: Make, tmp_path: Path) -> None:
    made = make("import first", first=slow_until(tmp_path / "never"))
    run_until(made, lambda: len(others(made)) == 2)
    assert eventually(lambda: len(others(made)) == 1), "it is forked again after the end of the workers"
    assert made.fork_server is not None
    made.fork_server.__exit__(None, None, None)
    assert set(marked_processes(made.facts.node)) == set()


def test_a_process_that_was_spawned_meanwhile_does_not_delay_the_replacement(make: Make, tmp_path: Path) -> None:
    """As the store server of a round, which lives as long as the round."""
    made = make("import first", first=slow_until(tmp_path / "gate"))
    assert made.fork_server is not None
    group = made.start()
    made.attend(group)
    assert eventually(lambda: len(others(made)) == 2)
    before = made.fork_server.request_spawn()
    assert before is not None
    assert select.select([before], [], [], TIMEOUT)[0]
    (tmp_path / "gate").touch()
    done = replaced(made)
    while not done():
        made.turn(group, TIMEOUT)
    after = made.fork_server.request_spawn()
    assert after is not None
    assert select.select([after], [], [], TIMEOUT)[0]
    for request in (before, after):
        request.cancel()
    group.stop(0.0)


def test_a_dead_replacement_is_replaced_like_any_fork_server(make: Make) -> None:
    made = make("import first", first="")
    run_until(made, replaced(made))
    assert made.fork_server is not None and made.fork_server.pid is not None
    os.kill(made.fork_server.pid, 9)
    run_until(made, replaced(made))
    assert preloaded(made) in ([], ["first"])
    assert len(made.reports) == 1 and "died; a new one is started" in made.reports[0]


# The record


def test_the_record_keeps_names_in_order_and_loses_those_beyond_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_imports, "_SIZE", 8 + 10)
    record = ImportRecord()
    for name in ("a", "b.c", "too.long.for.it", "d"):
        record.add(name)
    assert record.names() == ["a", "b.c", "d"]


@pytest.mark.parametrize(
    ("package", "installed"),
    [
        ("json", True),
        ("sys", True),
        ("pytest", True),
        ("hpcelastic", True),
        ("tests", False),
        ("no_such_package", False),
    ],
)
def test_modules_of_the_user_are_not_installed(package: str, installed: bool) -> None:
    assert is_installed(package) is installed


def test_the_variables_that_differ_between_workers_are_known() -> None:
    facts = RunFacts(RunPaths(Path("/r")), "r", "n@0", 3)
    parts = [
        Assignment(round, 0, 1, first, 2, 4, f"n{first}", first, "", first, 4) for round, first in ((1, 0), (2, 2))
    ]
    here, there = (worker_environment({}, part, 0, facts, {}) for part in parts)
    different = {name for name in here if here[name] != there[name]}
    assert {"RANK", "MASTER_ADDR", "HPCELASTIC_ROUND"} <= different
    known = {
        name for name in different if name in learned_imports.VARIABLES or name.startswith(learned_imports.PREFIXES)
    }
    assert known == different
