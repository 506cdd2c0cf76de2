"""A run that is watched in a notebook whose stop button is pressed."""

import queue
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from hpcelastic import Run, submit
from tests.api.jobs import WAITS, job
from tests.cli.shell import TIMEOUT, Shell


class Kernel:
    """An IPython kernel in the shell's directory."""

    def __init__(self, shell: Shell) -> None:
        self.manager = KernelManager()
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager._kernel_spec = KernelSpec(argv=argv, display_name="this", language="python")
        self.manager.start_kernel(cwd=str(shell.directory), env=shell.environ)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    def messages(self, code: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield type and content of each message of a cell until its end."""
        cell = self.client.execute(code)
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{code} does not end") from None
            if message["parent_header"].get("msg_id") == cell:
                if message["content"].get("execution_state") == "idle":
                    return
                yield message["msg_type"], message["content"]

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(shell.directory / name.lower()))
        shell.environ[name] = str(shell.directory / name.lower())
    (shell.directory / "jupyter_runtime_dir").mkdir()
    made = Kernel(shell)
    yield made
    made.stop()


@pytest.mark.slow
def test_the_stop_button_ends_only_the_watching(shell: Shell, kernel: Kernel) -> None:
    shell.write({"train.py": WAITS})
    run = submit(job(), executor="local")
    kinds, printed = [], ""
    for kind, content in kernel.messages("import hpcelastic; hpcelastic.Run.open('r').watch()"):
        kinds.append(kind)
        if kind == "stream":
            printed += content["text"]
        if kind == "update_display_data" and "hello from rank 0" in content["data"]["text/html"]:
            kernel.manager.interrupt_kernel()
    assert printed == "stopped watching; r continues; to watch it again: hpcelastic.Run.open('r').watch()\n"
    assert kinds.count("display_data") == 1, "it is drawn in place"
    assert "error" not in kinds
    assert run.status().phase == "running"
    shell.write({"finish": ""})
    assert Run.open("r").wait(TIMEOUT).phase == "succeeded"
