"""A worker forked by the fork server behaves like a new interpreter: every test runs with both start methods."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.agent.commands import can_be_forked
from hpcelastic.agent.settings import Entrypoint
from tests.agent.starting import node

FRESH: tuple[str, ...] = ()
FORKED = ("json",)
TORCH = ("torch",)
WAYS = pytest.mark.parametrize("preload", [FRESH, FORKED], ids=["fresh", "forked"])
TORCH_WAYS = pytest.mark.parametrize("preload", [FRESH, TORCH], ids=["fresh", "forked"])

ADDRESS = re.compile("0x[0-9a-f]+|started [0-9]+")
"""Attributes that differ between any two processes."""

Ended = tuple[int, str, str]
"""The end of a worker: exit status, standard output, standard error."""


def ended(
    directory: Path,
    preload: tuple[str, ...],
    script: str,
    args: tuple[str | int, ...] = (),
    *,
    entrypoint: Entrypoint | None = None,
    environ: Mapping[str, str] | None = None,
    **variables: str,
) -> Ended:
    """Run a script as one worker to its end."""
    entrypoint = entrypoint or Entrypoint(script=str(directory / "work" / "train.py"), args=args)
    work = directory / "work"
    work.mkdir(exist_ok=True)
    (work / "train.py").write_text(textwrap.dedent(script))
    with node(directory, entrypoint, preload, environ=environ, **variables) as made:
        (code,) = made.run()
        assert made.reports == []
        found = code, ADDRESS.sub("", made.log("out")), ADDRESS.sub("", made.log("err"))
    shutil.rmtree(directory / "run" / "logs")
    return found


def decoded_output(*arguments: Any, **more: Any) -> Any:
    """Run a script that must succeed and return its output, decoded from JSON."""
    code, out, err = ended(*arguments, **more)
    assert (code, err) == (0, ""), err
    return json.loads(out)


# Identical behaviour

ALIKE = {
    "arguments": "import sys; print(sys.argv, sys.orig_argv[1:], sys.flags)",
    "path": "import sys; print(sys.path, sys.path[0])",
    "main": "print(sorted((k, str(v)) for k, v in globals().items() if k not in ('__builtins__', '__loader__')))",
    "main's loader": "print(__loader__, __builtins__, __spec__, __package__)",
    "main is found": "import sys, __main__; print(__main__.__dict__ is globals(), sys.modules['__main__'])",
    "docstring": "'''What it is for'''\nprint(__doc__)",
    "future imports": "def f(a: int): pass\nprint(f.__annotations__)",
    "current directory": "import os; print(os.getcwd(), os.umask(0o77))",
    "input": "import sys, os; print(repr(sys.stdin.read()), os.readlink('/proc/self/fd/0'))",
    "streams": """
        import sys, os
        for s in (sys.stdin, sys.stdout, sys.stderr):
            print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno(), type(s.buffer))
        os.write(1, b'raw'); os.write(2, b'raw'); print('out'); print('err', file=sys.stderr)
        """,
    "open files": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "session": "import os; p = os.getpid(); print(os.getsid(0) == p, os.getpgid(0) == p)",
    "signals": """
        import signal
        print([(s.name, signal.getsignal(s)) for s in sorted(signal.valid_signals()) if isinstance(s, signal.Signals)])
        print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.sigpending())
        print([l for l in open('/proc/self/status') if l.startswith(('SigBlk', 'SigIgn', 'SigCgt', 'SigPnd'))])
        """,
    "exit handlers": "import atexit\nfor i in 1, 2, 3: atexit.register(print, 'exit', i)\nprint('end')",
    "threads are joined": """
        import threading, atexit
        go = threading.Event()
        threading.Thread(target=lambda: (go.wait(), print('thread'))).start()
        atexit.register(print, 'exit')
        threading.Timer(0.1, go.set).start()
        print(threading.current_thread(), threading.current_thread() is threading.main_thread())
        """,
    "status 0": "import sys; print(1); sys.exit()",
    "status 3": "import sys; sys.exit(3)",
    "status of a text": "import sys; sys.exit('no more data')",
    "status of an object": "import sys; sys.exit([1])",
    "SystemExit": "raise SystemExit(4)",
    "hard exit": "import os; print('x'); os._exit(5)",
    "KeyboardInterrupt": "def f(): raise KeyboardInterrupt\nf()",
    "KeyboardInterrupt and exit handlers": "import atexit; atexit.register(print, 'exit')\nraise KeyboardInterrupt()",
    "SIGINT": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "SIGUSR1": "import os, signal; os.kill(os.getpid(), signal.SIGUSR1); print('alive')",
    "abort": "import os; os.abort()",
    "exception": "def f(x):\n    return 1 / x\n\nf(0)",
    "exception in an exception": """
        def f():
            try:
                {}['a']
            except KeyError as error:
                raise ValueError('b') from error
        f()
        """,
    "exception during an exception": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    undefined",
    "exception group of one": "class E(BaseException): pass\nraise E('base')",
    "syntax error": "def f(:\n",
    "syntax error in an import": "open(__file__.replace('train', 'bad'), 'w').write('x = = 1')\nimport bad",
    "odd encoding": "# -*- coding: latin-1 -*-\nprint(ascii('\xe4'))",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0], a[2].tb_frame.f_code.co_name)\n1 / 0",
    "excepthook that fails": "import sys\ndef hook(*a): raise ValueError('hook')\nsys.excepthook = hook\n1 / 0",
    "excepthook that exits": "import sys\nsys.excepthook = lambda *a: sys.exit(7)\n1 / 0",
    "last exception": """
        import atexit, sys
        atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))
        raise ValueError('x')
        """,
    "exception with frames in the standard library": "import json; json.loads('{')",
    "warning": "import warnings; warnings.warn('careful')",
    "warnings' filters": "import warnings; print(warnings.filters)",
    "garbage": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug())",
    "recursion": "def f(n): return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as e:\n    print(type(e))",
    "children's environment": """
        import os, subprocess, sys
        child = subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.environ))'], capture_output=True)
        print(sorted(set(os.environ) - {'PWD', 'OLDPWD', 'SHLVL', '_'}), sorted(os.environ) == eval(child.stdout))
        print(subprocess.run(['env'], capture_output=True, env=None).stdout.count(b'RANK='))
        """,
    "children's signals": """
        import subprocess
        pattern = '^(Sig|Shd)(Pnd|Blk|Ign|Cgt)'  # SigQ counts the signals of all processes of the user
        print(subprocess.run(['grep', '-E', pattern, '/proc/self/status'], capture_output=True, text=True).stdout)
        """,
    "no other threads": "import os, threading; print(threading.enumerate(), len(os.listdir('/proc/self/task')))",
    "no children": """
        import os
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print('none')
        """,
    "multiprocessing by spawn": """
        import multiprocessing
        class Task:
            def __init__(self, n): self.n = n
        def work(task): return type(task).__module__, task.n * 2
        if __name__ == '__main__':
            with multiprocessing.get_context('spawn').Pool(2) as pool:
                print(pool.map(work, [Task(1), Task(2)]))
        """,
    "multiprocessing by fork": """
        import multiprocessing
        def work(n): return n * 2
        with multiprocessing.get_context('fork').Pool(2) as pool:
            print(pool.map(work, range(5)))
        """,
    "multiprocessing by forkserver": """
        import multiprocessing
        def work(n): return __name__, n * 2
        if __name__ == '__main__':
            with multiprocessing.get_context('forkserver').Pool(2) as pool:
                print(pool.map(work, range(3)))
        """,
    "pickle of a class of the script": """
        import pickle
        class Model: pass
        print(pickle.dumps(Model()), type(pickle.loads(pickle.dumps(Model()))) is Model)
        """,
    "a neighbouring module is imported": """
        import os
        open(os.path.join(os.path.dirname(__file__), 'neighbour.py'), 'w').write('X = __name__')
        import neighbour; print(neighbour.X, neighbour.__file__)
        """,
    "source": "import inspect\ndef f(): pass\nprint(inspect.getsource(f), inspect.getsourcefile(f))",
    "the script is imported by itself": """
        import sys, os
        if len(sys.argv) == 1:
            os.execv(sys.executable, [*sys.orig_argv, '2'])
        print(sys.argv)
        """,
}


@pytest.mark.parametrize("script", ALIKE.values(), ids=ALIKE)
def test_same_as_in_a_fresh_interpreter(tmp_path: Path, script: str) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    expected = ended(tmp_path, FRESH, script, environ=environ, PYTHONWARNINGS="default", EXTRA="x")
    assert expected[1] or expected[2] or expected[0], "it must do something"
    assert ended(tmp_path, FORKED, script, environ=environ, PYTHONWARNINGS="default", EXTRA="x") == expected


MODULE = """
import sys, os
print(__name__, __package__, __spec__, sys.argv, sys.orig_argv[1:], sys.path[0], __file__)
print(sorted((k, str(v)) for k, v in globals().items() if k != '__builtins__'))
if sys.argv[1:] == ['fail']:
    raise ValueError('x')
"""
MODULES = {
    "module": ("package.job", ("a", 1)),
    "package": ("package", ()),
    "module that fails": ("package.job", ("fail",)),
    "no such module": ("package.none", ()),
    "package without main": ("empty", ()),
    "module whose import fails": ("package.broken", ()),
}


@pytest.mark.parametrize(("module", "args"), MODULES.values(), ids=MODULES)
def test_modules_run_as_in_a_fresh_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, args: tuple[str | int, ...]
) -> None:
    for name, text in {
        "package/__init__.py": "",
        "package/job.py": MODULE,
        "package/__main__.py": MODULE,
        "package/broken.py": "import nothing_of_that_name",
        "empty/__init__.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    entrypoint = Entrypoint(module=module, args=args)
    expected = ended(tmp_path, FRESH, "", entrypoint=entrypoint)
    assert ended(tmp_path, FORKED, "", entrypoint=entrypoint) == expected


SCRIPTS = {
    "relative": ("train.py", "print(__file__, __import__('sys').path[0])"),
    "with a dot": ("./train.py", "print(__file__, __import__('sys').path[0])\n1/0"),
    "in a directory": ("deep/train.py", "print(__file__, __import__('sys').argv)\n1/0"),
    "through a link": ("link.py", "print(__file__, __import__('sys').path[0])"),
}


@pytest.mark.parametrize(("path", "script"), SCRIPTS.values(), ids=SCRIPTS)
def test_scripts_are_found_as_by_a_fresh_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, script: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "deep/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(script)
    (tmp_path / "link.py").symlink_to("deep/train.py")
    entrypoint = Entrypoint(script=path)
    assert can_be_forked(entrypoint)
    expected = ended(tmp_path, FRESH, "", entrypoint=entrypoint)
    assert ended(tmp_path, FORKED, "", entrypoint=entrypoint) == expected


def test_a_missing_script_has_the_error_of_a_fresh_interpreter(tmp_path: Path) -> None:
    entrypoint = Entrypoint(script=str(tmp_path / "gone.py"))
    expected = ended(tmp_path, FRESH, "", entrypoint=entrypoint)
    assert expected[0] == 2
    assert ended(tmp_path, FORKED, "", entrypoint=entrypoint) == expected


@pytest.mark.parametrize("name", ["directory", "archive.pyz", "bytecode.pyc", "none.py", "no_suffix"])
def test_special_entrypoints_use_a_fresh_interpreter(tmp_path: Path, name: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "no_suffix").write_text("")
    assert not can_be_forked(Entrypoint(script=str(tmp_path / name)))


@WAYS
def test_each_worker_has_its_own_environment(tmp_path: Path, preload: tuple[str, ...]) -> None:
    script = """
        import json, os, ctypes
        libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p
        print(json.dumps([dict(os.environ), libc.getenv(b'RANK').decode(), libc.getenv(b'EXTRA').decode()]))
        """
    environ = {"PATH": os.environ["PATH"], "ODD": "a\udcffb", "WITH": "several\nlines = \"'"}
    found, rank, extra = decoded_output(tmp_path, preload, script, environ=environ, EXTRA="x" * 100_000)
    assert (rank, extra) == ("0", "x" * 100_000)
    assert found.items() >= {**environ, "EXTRA": extra, "RANK": "0", "HPCELASTIC_ROUND": "1"}.items()
    assert "TORCHELASTIC_RUN_ID" in found and set(found) - set(environ) == set(found) - set(environ) - {"PYTHONPATH"}


def test_changes_of_the_environment_by_imports_are_kept(tmp_path: Path) -> None:
    (tmp_path / "sets.py").write_text(
        "import os\nos.environ['SET'] = 'new'\nos.environ['CHANGED'] = 'new'\ndel os.environ['REMOVED']"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "CHANGED": "old", "REMOVED": "x"}
    script = "import sets, os; print(sorted((k, v) for k, v in os.environ.items() if k not in SHELLS))"
    script = f"SHELLS = {('PWD', 'OLDPWD', 'SHLVL', '_')}\n{script}"
    expected = ended(tmp_path, FRESH, script, environ=environ)
    assert "('CHANGED', 'new')" in expected[1] and "REMOVED" not in expected[1]
    assert ended(tmp_path, ("sets",), script, environ=environ) == expected


@WAYS
def test_workers_draw_different_random_numbers(tmp_path: Path, preload: tuple[str, ...]) -> None:
    preload = (*preload, "random", "numpy", "multiprocessing") if preload else preload
    (tmp_path / "draw.py").write_text(
        "import random, numpy, multiprocessing, tempfile, uuid, json\n"
        "key = multiprocessing.current_process().authkey.hex()\n"
        "print(json.dumps([random.random(), numpy.random.rand(), float(numpy.random.default_rng().random()), key,"
        " tempfile.mktemp(), str(uuid.uuid4())]))"
    )
    with node(tmp_path, Entrypoint(script=str(tmp_path / "draw.py")), preload, workers=3) as made:
        drawn = []
        for _ in range(2):
            assert made.run(3) == [0, 0, 0]
            drawn += [json.loads(made.log("out", rank)) for rank in range(3)]
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == 6


def test_output_of_imports_is_in_every_workers_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, sys, warnings\nprint('hello')\nos.write(1, b'raw\\n')\nwarnings.warn('careful')"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    expected = ended(tmp_path, FRESH, "import noisy", environ=environ)
    assert expected[1] == "hello\nraw\n" and "careful" in expected[2]
    assert ended(tmp_path, ("noisy",), "import noisy", environ=environ) == expected


def test_ps_shows_the_users_command(tmp_path: Path) -> None:
    script = "print(open('/proc/self/cmdline').read().rstrip('\\0').split('\\0'))"
    code, out, _ = ended(tmp_path, FORKED, script, ("--lr", "0.1"))
    assert code == 0
    assert out == f"{[sys.executable, '-u', str(tmp_path / 'work' / 'train.py'), '--lr', '0.1']}\n"


def test_only_the_lowest_frame_is_ours(tmp_path: Path) -> None:
    script = """
        import json, traceback
        def f(): return [frame.filename for frame in traceback.extract_stack()]
        print(json.dumps(f()))
        """
    frames = decoded_output(tmp_path, FORKED, script)
    assert frames[1:] == [str(tmp_path / "work" / "train.py")] * 2
    assert frames[0].endswith("worker/fork_server_main.py")


def test_nothing_of_this_package_is_imported(tmp_path: Path) -> None:
    script = "import json, sys; print(json.dumps([name for name in sys.modules if name.startswith('hpcelastic')]))"
    assert decoded_output(tmp_path, FORKED, script) == []


@WAYS
def test_a_function_is_called_and_its_result_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preload: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import os\ndef train(a, b):\n    return a * b + int(os.environ['RANK'])")
    (tmp_path / "run").mkdir(mode=0o700)
    code, out, err = ended(tmp_path, preload, "", entrypoint=Entrypoint(function="mine:train", args=(6, 7)))
    assert (code, out, err) == (0, "", "")
    kept = json.loads((tmp_path / "run" / "results" / "round-0001.rank-00000.json").read_text())
    assert kept == 42


@WAYS
@pytest.mark.parametrize("forward", [(), ("SIGUSR1",)], ids=["ignored", "forwarded"])
def test_forwarded_signals_are_not_ignored(tmp_path: Path, preload: tuple[str, ...], forward: tuple[str, ...]) -> None:
    (tmp_path / "kill.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGUSR1)")
    with node(tmp_path, Entrypoint(script=str(tmp_path / "kill.py")), preload, forward=forward) as made:
        assert made.run() == [-signal.SIGUSR1 if forward else 0]


@WAYS
def test_descriptors_to_be_kept_are_open(tmp_path: Path, preload: tuple[str, ...]) -> None:
    script = "import os, sys\nassert os.read(int(sys.argv[1]), 1) == b'!'"
    (tmp_path / "read.py").write_text(script)
    read, write = os.pipe()
    os.write(write, b"!")
    entrypoint = Entrypoint(script=str(tmp_path / "read.py"), args=(read,))
    try:
        with node(tmp_path, entrypoint, preload, keep_fds=(read,)) as made:
            assert made.run() == [0]
            assert stat.S_ISFIFO(os.stat(f"/proc/{made.guard.pid}/fd/{read}").st_mode)
    finally:
        os.close(read)
        os.close(write)


# With torch


LOADER = """
import sys, torch
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([i * i])
if __name__ == '__main__':
    loader = DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1])
    print([batch.flatten().tolist() for batch in loader])
"""


@pytest.mark.slow
@TORCH_WAYS
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_loaders_of_torch(tmp_path: Path, preload: tuple[str, ...], context: str) -> None:
    code, out, err = ended(tmp_path, preload, LOADER, (context,))
    assert (code, out) == (0, "[[0, 1], [4, 9], [16, 25], [36, 49]]\n"), err


TORCH_STATE = """
import json, torch
print(json.dumps([torch.get_num_threads(), torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(),
    (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item(), torch.initial_seed(), torch.rand(1).item()]))
"""


@pytest.mark.slow
def test_torch_has_the_state_of_a_fresh_import(tmp_path: Path) -> None:
    *expected, _, _ = decoded_output(tmp_path, FRESH, TORCH_STATE)
    assert expected[1:3] == [False, False]
    (tmp_path / "state.py").write_text(TORCH_STATE)
    with node(tmp_path, Entrypoint(script=str(tmp_path / "state.py")), TORCH) as made:
        states = []
        for _ in range(2):
            assert made.run() == [0], made.log("err")
            states.append(json.loads(made.log("out")))
    assert [state[:-2] for state in states] == [expected, expected]
    assert states[0][-2] != states[1][-2] and states[0][-1] != states[1][-1], "fresh seeds, like a fresh interpreter"


def _cuda() -> bool:
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return any(Path("/dev").glob("nvidia[0-9]*")) and subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
@TORCH_WAYS
def test_cuda_works_in_workers(tmp_path: Path, preload: tuple[str, ...]) -> None:
    if not _cuda():
        pytest.skip("no GPU here")
    script = "import torch; a = torch.ones(9, device='cuda'); torch.cuda.synchronize(); print(int((a + 1).sum()))"
    with node(tmp_path, Entrypoint(script=str(tmp_path / "cuda.py")), preload, workers=2) as made:
        (tmp_path / "cuda.py").write_text(script)
        for _ in range(2):
            assert made.run(2) == [0, 0], made.log("err")
            assert made.log("out", 1) == "18\n"
        assert made.reports == []


@pytest.mark.slow
@TORCH_WAYS
def test_workers_meet_over_gloo(tmp_path: Path, preload: tuple[str, ...]) -> None:
    (tmp_path / "meet.py").write_text(
        "import torch, sys, torch.distributed as dist\n"
        "import os\n"
        "rank, size = (int(os.environ[name]) for name in ('RANK', 'WORLD_SIZE'))\n"
        "dist.init_process_group('gloo', init_method=f'file://{sys.argv[1]}', rank=rank, world_size=size)\n"
        "t = torch.ones(4); dist.all_reduce(t); print(t.tolist()); dist.destroy_process_group()"
    )
    entrypoint = Entrypoint(script=str(tmp_path / "meet.py"), args=(str(tmp_path / "store"),))
    with node(tmp_path, entrypoint, preload, workers=2) as made:
        assert made.run(2) == [0, 0], made.log("err")
        for rank in range(2):  # gloo of torch 2.10 writes a line of its own before
            assert made.log("out", rank).splitlines()[-1] == "[2.0, 2.0, 2.0, 2.0]"
