"""Stopping at the end of a step. A request of SLURM, a drain or a new node reaches the training loop as a flag.

If one rank left its loop alone, the other ranks would wait in a collective, so all ranks must see the flag in the same
step. If a process group is initialised, the ranks agree on the step: every call starts a reduction of one number among
them, in the background and separate from training, and uses the result of the reduction that the previous call started.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hpcelastic.ipc.control_page import StopRequest, now
from hpcelastic.ipc.mark_kinds import MarkKind, loss_bits

from .context import context, local_index
from .control_page import mark, own_control_page
from .process_groups import has_process_group

if TYPE_CHECKING:
    import torch

_REDUCE_TIMEOUT = timedelta(days=7)
"""The time-out of a reduction. It is long because the time-outs of the training decide whether a rank is too late."""

_callbacks: list[Callable[[], object]] = []


def should_stop() -> bool:
    """Return True if this round must end at this step: save a checkpoint, and end the process with status 0.

    Every rank calls this once in each step, at the same place. All ranks get the same answer, at most one step after
    the request. Once True, it stays True, and the end of this process is no success of the run: its agent continues in
    another round, or in a later job. Callbacks of `on_stop` have run by then. From the first call on, SIGTERM, which
    SLURM sends to all processes of a job, does not end this process; the agent ends it in time. Processes of a
    DataLoader need `ignore_sigterm` for the same effect. Always False outside hpcelastic.
    """
    global _poller
    if _poller is None:
        _poller = _StopPoller()
    return _poller.poll()


def on_stop(callback: Callable[[], object]) -> Callable[[], object]:
    """Register ``callback``, which every rank calls before `should_stop` returns True for the first time. A decorator.

    Save a checkpoint in the callback if a library calls `should_stop`.
    """
    _callbacks.append(callback)
    return callback


def time_left() -> float:
    """Return the seconds until this process is ended after a stop request; infinity without a request."""
    request = _stop_request()
    return float("inf") if request is None else max(0.0, request.deadline - now())


def why_stop() -> str:
    """Return the reason of the stop request; empty without a request."""
    request = _stop_request()
    return "" if request is None else request.reason


def ignore_sigterm(worker: int = 0) -> None:
    """Ignore SIGTERM, which SLURM sends to all processes of a job, in this process.

    Use it as ``worker_init_fn`` of a DataLoader, so that its processes survive until the training stops at a step.
    """
    # Not SIG_IGN, because programs that this process starts would inherit it.
    signal.signal(signal.SIGTERM, _no_op)
    signal.siginterrupt(signal.SIGTERM, False)


def _no_op(signum: int, frame: object) -> None: ...


def _restore_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _no_op:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def report_progress(step: int | None = None, *, total: int | None = None, loss: float | None = None) -> None:
    """Report progress of the training: that the state after ``step`` steps is saved, and values for the display.

    A run that saves nothing is detected. ``total`` is the number of steps in all, and ``loss`` the loss of the newest
    step: `hpcelastic status`, the notebook and the report show them. To read a loss from a GPU, the CPU waits for it,
    so report it every few steps. `Checkpoints.save` reports ``step`` itself, and `Elastic` the total.

    Examples:
        >>> report_progress(total=10_000)  # at the beginning
        >>> report_progress(loss=0.25)  # in a step
    """
    control_page = own_control_page()
    if control_page is None:
        return
    if total is not None:
        mark(MarkKind.TOTAL, total)
    if loss is not None:
        mark(MarkKind.LOSS, loss_bits(loss))
    if step is not None:
        control_page.report(local_index(), step)
        mark(MarkKind.SAVED, step)


def must_save() -> bool:
    """Return True if a node leaves, or the run shall have a checkpoint. Every rank calls this after `should_stop`.

    All ranks get the same answer. It is False only if the round ends because nodes join.
    """
    return _poller is not None and _poller.must_save()


def registered_callbacks() -> int:
    """Return the number of callbacks that are registered."""
    return len(_callbacks)


def end_round(callbacks: int) -> None:
    """Forget the request of the last round, and the callbacks that it registered: all but the first ``callbacks``."""
    global _poller
    _poller = None
    del _callbacks[callbacks:]


class _StopPoller:
    """A poller of the stop flag of this rank, which agrees with the other ranks."""

    def __init__(self) -> None:
        self._local_index, self._round = local_index(), context().round
        self._control_page = own_control_page()
        self._marks = None if self._control_page is None else self._control_page.marks(self._local_index)
        self._steps = 0
        """The number of calls of `poll`."""

        self._reduction: _StopReduction | None = None
        self._stopping = False
        self._ignore_sigterm()

    def _ignore_sigterm(self) -> None:
        """Ignore SIGTERM, unless the script handles it itself."""
        if self._control_page is None or threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGTERM)
        if handler == signal.SIG_DFL:
            ignore_sigterm()
            os.register_at_fork(after_in_child=_restore_sigterm)  # the script may end its child processes by SIGTERM
        if handler in (signal.SIG_DFL, _no_op):
            self._control_page.ignore_sigterm(self._local_index, self._round)

    def poll(self) -> bool:
        if self._control_page is None or self._marks is None or self._stopping:
            return self._stopping
        self._steps += 1
        self._marks.write(self._round, MarkKind.STEP, self._steps)
        # First, because it waits for all ranks: an agent whose workers do not poll stops them at once, and workers that
        # poll would then wait for them until the time for the end of the step is over.
        self._meet()
        requested = self._control_page.poll(self._local_index, self._round)
        if self._any_rank_requested(requested):
            self._control_page.acknowledge(self._local_index, self._round)
            self._marks.write(self._round, MarkKind.STOPPING, self._steps)
            self._stopping = True
            for callback in _callbacks:
                callback()
        return self._stopping

    def must_save(self) -> bool:
        request = _stop_request()
        mine = request is not None and request.save
        return mine if self._reduction is None else self._reduction.reduce_now(mine)

    def _meet(self) -> None:
        """Create the process group of the reductions, unless it exists or there is only one rank."""
        group = _default_group()
        if group is None:
            self._reduction = None
        elif self._reduction is None or self._reduction.world is not group:
            self._reduction = _StopReduction(group)

    def _any_rank_requested(self, requested: bool) -> bool:
        """Return True if any rank got a stop request. All ranks return the same in the same call."""
        return requested if self._reduction is None else self._reduction.reduce(requested)


class _StopReduction:
    """Successive reductions of a flag over all ranks, in a process group of its own on the CPU."""

    def __init__(self, world: Any) -> None:
        import torch.distributed as dist

        self.world = world
        with on_agents_interface():
            self._group = dist.new_group(backend="gloo", timeout=_REDUCE_TIMEOUT)
        self._work: Any = None
        self._flag: torch.Tensor | None = None

    def reduce(self, requested: bool) -> bool:
        """Return True if the previous reduction found a stop request; otherwise start the next reduction."""
        import torch
        import torch.distributed as dist

        if self._work is not None and self._flag is not None:
            self._work.wait()
            if self._flag.item():
                return True
        self._flag = torch.tensor([int(requested)], dtype=torch.uint8, device="cpu")
        self._work = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return False

    def reduce_now(self, flag: bool) -> bool:
        """Return True if any rank has the flag set."""
        import torch
        import torch.distributed as dist

        tensor = torch.tensor([int(flag)], dtype=torch.uint8, device="cpu")
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return bool(tensor.item())


@contextlib.contextmanager
def on_agents_interface() -> Iterator[None]:
    """Let gloo use the interface of the agents. By default it resolves the host name, which may give a loopback."""
    name, interface = "GLOO_SOCKET_IFNAME", os.environ.get("HPCELASTIC_INTERFACE")
    if not interface or os.environ.get(name):
        yield
        return
    os.environ[name] = interface
    try:
        yield
    finally:
        del os.environ[name]


_poller: _StopPoller | None = None


def _stop_request() -> StopRequest | None:
    """Return the stop request to the workers of this round; None if there is none."""
    control_page = own_control_page()
    request = None if control_page is None else control_page.request()
    return request if request is not None and request.round == context().round else None


def _default_group() -> Any:
    """Return the default process group if it has more than one rank; otherwise None."""
    if not has_process_group():
        return None
    import torch.distributed as dist

    return dist.group.WORLD if dist.get_world_size() > 1 else None
