"""Stopping at a step's end: what SLURM, a drain or a newcomer asks of a run reaches its training loop as a flag.

A rank that left its loop alone would leave the others waiting in a collective, so all ranks must hear of it in the same
step. Where a process group is initialised they agree on that: every call starts a reduction of one number among them,
in the background and apart from training, and takes in the result of the one that the call before has started.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hpcelastic.store.board import Board, Wish, now

from .context import context, seat

if TYPE_CHECKING:
    import torch

_PATIENCE = timedelta(days=7)
"""For a rank that comes late to a step: whether that is too late is for the training's own time-outs to say."""

_callbacks: list[Callable[[], object]] = []


def should_stop() -> bool:
    """Whether this round is to end at this step: save a checkpoint, and let the process end with status 0.

    To be asked by every rank, once in each step, at the same place: all get the same answer, at most one step after it
    became known. Once it was True it stays so, and the end of this process is no success of the run: its agent goes on
    in another round, or on another day. Callbacks of `on_stop` have run by then. From the first call on SIGTERM, which
    SLURM sends to all processes of a job, does not end this process; its agent does, in time. Processes of a DataLoader
    need `ignore_sigterm` for that. False outside hpcelastic.
    """
    global _listener
    if _listener is None:
        _listener = _Listener()
    return _listener.ask()


def on_stop(callback: Callable[[], object]) -> Callable[[], object]:
    """Let ``callback`` be called in every rank when `should_stop` is about to be True for the first time; a decorator.

    The place to save a checkpoint where `should_stop` is asked by a library.
    """
    _callbacks.append(callback)
    return callback


def time_left() -> float:
    """Seconds until a process that was asked to stop is ended; infinity as long as nobody has asked."""
    wish = _wish()
    return float("inf") if wish is None else max(0.0, wish.deadline - now())


def why_stop() -> str:
    """Why this round is to end; empty as long as it is not."""
    wish = _wish()
    return "" if wish is None else wish.reason


def ignore_sigterm(worker: int = 0) -> None:
    """Let SIGTERM, which SLURM sends to all processes of a job, not end this one.

    As ``worker_init_fn`` of a DataLoader it keeps its processes, without which there is no next step to stop at.
    """
    # No SIG_IGN, which programs that this process starts would inherit.
    signal.signal(signal.SIGTERM, _nothing)
    signal.siginterrupt(signal.SIGTERM, False)


def _nothing(signum: int, frame: object) -> None: ...


def _heed_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def report_progress(step: int) -> None:
    """Note that the state after ``step`` steps is saved, so that a run which gets nowhere is seen as such.

    `Checkpoints.save` does so itself.
    """
    board = _board()
    if board is not None:
        board.report(seat(), step)


class _Listener:
    """Asks for this rank, and with the others."""

    def __init__(self) -> None:
        self._seat, self._round = seat(), context().round
        self._board = _board()
        self._vote: _Vote | None = None
        self._stopping = False
        self._ignore_sigterm()

    def _ignore_sigterm(self) -> None:
        """Unless the script has a mind of its own about it."""
        here = threading.current_thread() is threading.main_thread()
        if self._board is not None and here and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._board.deafen(self._seat, self._round)
            ignore_sigterm()
            os.register_at_fork(after_in_child=_heed_sigterm)  # who starts a process may end it

    def ask(self) -> bool:
        if self._board is None or self._stopping:
            return self._stopping
        asked = self._board.look(self._seat, self._round)
        if self._agreed(asked):
            self._board.tell(self._seat, self._round)
            self._stopping = True
            for callback in _callbacks:
                callback()
        return self._stopping

    def _agreed(self, asked: bool) -> bool:
        """Whether any rank was asked, known to all in the same call."""
        group = _world()
        if group is None:
            return asked
        if self._vote is None or self._vote.world is not group:
            self._vote = _Vote(group)
        return self._vote.cast(asked)


class _Vote:
    """One reduction after the other, in a process group of its own on the CPU."""

    def __init__(self, world: Any) -> None:
        import torch.distributed as dist

        self.world = world
        with _at_our_interface():
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._work: Any = None
        self._ballot: torch.Tensor | None = None

    def cast(self, asked: bool) -> bool:
        """Start the next reduction, unless the one before says that somebody was asked."""
        import torch
        import torch.distributed as dist

        if self._work is not None and self._ballot is not None:
            self._work.wait()
            if self._ballot.item():
                return True
        self._ballot = torch.tensor([int(asked)], dtype=torch.uint8)
        self._work = dist.all_reduce(self._ballot, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return False


@contextlib.contextmanager
def _at_our_interface() -> Iterator[None]:
    """Let gloo meet the others where agents do: by itself it goes by the host's name, which may mean a loopback."""
    name, interface = "GLOO_SOCKET_IFNAME", os.environ.get("HPCELASTIC_INTERFACE")
    if not interface or os.environ.get(name):
        yield
        return
    os.environ[name] = interface
    try:
        yield
    finally:
        del os.environ[name]


_listener: _Listener | None = None
_page: tuple[str, Board] | None = None


def _board() -> Board | None:
    """The page that our agent shares with us; None outside hpcelastic, or where the agent has ended."""
    global _page
    name = os.environ.get("HPCELASTIC_BOARD")
    if not name:
        return None
    if _page is None or _page[0] != name:
        try:
            _page = name, Board.open(name)
        except OSError:
            return None
    return _page[1]


def _wish() -> Wish | None:
    """What the workers of this round are asked; None if nothing."""
    board = _board()
    wish = None if board is None else board.wish()
    return wish if wish is not None and wish.round == context().round else None


def _world() -> Any:
    """The default process group of more than one rank; None if there is none."""
    if "torch.distributed" not in sys.modules:
        return None
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return dist.group.WORLD
