"""The rounds of a process that stays: when a round ends, it is parked, and resumed in the next round.

The agent ends a round with a message. A thread of this module reads it, and shuts down the sockets of the process
groups, so that a collective that waits for a lost peer raises an error. It aborts those of a GPU. If the main thread
does not leave the script's function soon after, a signal makes it raise `RoundEnded`, but never inside
``optimizer.step()``. Once the main thread has left the function, it destroys the process groups, revokes the token of
the process, and reports that it is parked. An agent that does not get this report in time kills the process and starts
another one.
"""

import errno
import functools
import gc
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from hpcelastic.ipc.control_page import ControlPage
from hpcelastic.ipc.marks import MarkKind
from hpcelastic.ipc.worker_channel import Entered, Interrupted, Message, Park, Parked, Resume, WorkerChannel

from . import stop
from .context import context, local_index
from .control_page import mark, own_control_page
from .device_groups import await_collectives, connect, leave_errors_to_agent
from .kept_groups import kept_wrappers
from .process_groups import ProcessGroups, has_process_group
from .token import revoke_token

if TYPE_CHECKING:
    import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

log = logging.getLogger(__name__)

_CHANNEL_VARIABLE = "HPCELASTIC_WORKER_CHANNEL"
_INTERRUPT_DELAY = 0.5
"""Seconds between the end of the connections and the signal to a main thread that has not noticed it."""

_LISTENER_CHECK = 1.0
"""Seconds until a process that waits for the end of its round looks whether its channel is open."""

_INTERRUPT_SIGNAL = signal.SIGRTMAX - 1


class RoundEnded(BaseException):
    """The round of this process has ended. Not an ``Exception``, so that scripts do not handle it by accident."""


def resumable(main: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function that calls ``main`` in each round of the run, in the same process, until it returns.

    Without it, the processes of a round end with the round, and those of the next round start anew. With it, imports,
    the CUDA context and compiled code of the surviving processes stay. ``main`` must create the process group and all
    that uses it, and load its state, as in a new process; RANK, WORLD_SIZE and `context` have new values in each call.
    LOCAL_RANK never changes. A process that cannot leave the last round in time is replaced by a new one.

    An error of a collective ends the round, in which case ``main`` is called again. Any other exception is raised.
    Outside hpcelastic, ``main`` is called once.

    Examples:
        >>> @resumable
        ... def main():
        ...     return context().world_size
        >>> main()
        1
    """

    @functools.wraps(main)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        seat = take_seat()
        return main(*args, **kwargs) if seat is None else seat.run(lambda: main(*args, **kwargs))

    return run


class Seat:
    """The place of this process among the workers of its node, which it keeps for all rounds."""

    def __init__(self, channel: WorkerChannel, page: ControlPage) -> None:
        self._channel, self._page, self._index = channel, page, local_index()
        self._round = context().round
        self._over = threading.Event()
        """Set once the agent has ended the round."""

        self._left = threading.Event()
        """Set while the main thread is not in the script's function."""

        self._interruptible = False
        """Whether the signal may raise `RoundEnded`. It does so once in a round."""

        self._resumes: queue.SimpleQueue[tuple[Resume, list[int]] | Exception | None] = queue.SimpleQueue()
        self._groups = ProcessGroups()
        self._main_thread = threading.current_thread()
        self._holds = self._interrupt_due = False
        self.releases_at_boundary = False
        """Whether the function itself calls `release`, at the end of a step. Otherwise the optimizer's step does."""

        self._callbacks = stop.registered_callbacks()
        """The number of stop callbacks that do not belong to a round."""

        leave_errors_to_agent()
        self._guard_optimizer_steps()
        if self._main_thread is threading.main_thread():
            signal.signal(_INTERRUPT_SIGNAL, self._interrupted)
        self._left.set()
        gc.freeze()  # so that the collection after each round visits only what the rounds have created
        self._listener = threading.Thread(target=self._listen, name="hpcelastic seat", daemon=True)
        self._listener.start()

    def run(self, body: Callable[[], Result]) -> Result:
        """Call ``body`` in each round until it returns without a request to stop, and return its result."""
        self._channel.send(Entered(early_start=not has_process_group()))
        if not self._page.is_granted(self._index, self._round):  # started before it has a place in a round
            self._wait_for_round()
        while True:
            mark(MarkKind.ENTERED, self._round)
            error: BaseException | None = None
            self._left.clear()
            self._holds = self._interrupt_due = False
            try:
                self._interruptible = True
                if self._over.is_set():
                    raise RoundEnded
                result = body()
                self._interruptible = False
            except (Exception, RoundEnded) as raised:
                self._interruptible, error = False, raised
            finally:
                self._left.set()
            if error is None:
                if not self._page.acknowledges(self._index, self._round):
                    return result
            elif not self._ends_round(error):
                raise error
            failed = error is not None
            error = None  # with it, the objects of the function's frames are released
            self._park(failed)
            self._wait_for_round()

    @property
    def is_in_function(self) -> bool:
        """Whether the main thread is in the script's function."""
        return not self._left.is_set()

    def connect(self, device: "torch.device") -> None:
        """Create the communicator of the default process group for a GPU, while the end of the round ends that too."""
        with self._groups.connecting():
            connect(device)

    def hold(self) -> None:
        """Do not interrupt the main thread from now on, until `release` is called."""
        self._holds = True

    def release(self) -> None:
        """Let the main thread be interrupted again. Raise `RoundEnded` if it should have been."""
        self._holds = False
        if self._interrupt_due and self._interruptible:
            self._leave_function()

    # In the main thread

    def _ends_round(self, error: BaseException) -> bool:
        """Return whether ``error`` is due to the end of the round. Wait for that end if a collective has failed.

        Return False if the agent has closed the channel before it ended the round: it will never park this process.
        """
        expected = isinstance(error, RoundEnded) or _is_of_collective(error)
        if not expected:
            if self._over.is_set():  # perhaps the script has put the error of a collective into one of its own
                log.warning("round %d has ended, and the function has raised %r", self._round, error)
            return self._over.is_set()
        if not self._over.is_set() and self._listener.is_alive():
            text = str(error).strip().partition("\n")[0][:500]
            print(f"round {self._round}: a collective has failed, waiting for the next round: {text}", file=sys.stderr)
            self._channel.send(Interrupted(self._round, text))
            while not self._over.wait(_LISTENER_CHECK) and self._listener.is_alive():
                pass
        return self._over.is_set()

    def _park(self, failed: bool) -> None:
        """Leave the round for good, after an error in the script's function if it has ``failed``."""
        stop.end_round(self._callbacks)
        self._groups.destroy(failed=failed)
        gc.collect()
        self._warn_of_kept_groups()
        revoke_token(keep=self._listener)

    def _warn_of_kept_groups(self) -> None:
        """Name what of the round still uses its process groups. Torch does not notice the use of such an object."""
        for kept in kept_wrappers():
            log.warning(
                "round %d has ended, and %s still holds its process group, which is destroyed: create it in the "
                "function that is called in each round, in a local variable",
                self._round,
                kept,
            )

    def _wait_for_round(self) -> None:
        """Report that this process is parked. Wait for a round, and take its place, token and output."""
        mark(MarkKind.PARKED, self._round)
        self._channel.send(Parked(self._round))
        message = self._resumes.get()
        if message is None:  # the agent has no further round for this process
            sys.exit(0)
        if isinstance(message, Exception):
            raise RuntimeError("this process cannot take part in another round") from message
        resume, (stdout, stderr) = message
        for number, fd, stream in ((1, stdout, sys.stdout), (2, stderr, sys.stderr)):
            stream.flush()
            os.dup2(fd, number)
            os.close(fd)
        for name, value in resume.environ.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        mark(MarkKind.RESUMED, resume.round)

    def _interrupted(self, signum: int, frame: object) -> None:
        """Handle the signal: leave the script's function, but not in the middle of an optimizer's step."""
        if self._holds:
            self._interrupt_due = True
        elif self._interruptible:
            self._leave_function()

    def _leave_function(self) -> NoReturn:
        self._interruptible = False
        raise RoundEnded(f"round {self._round} has ended")

    def _guard_optimizer_steps(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        def before(optimizer: object, args: Any, kwargs: Any) -> None:
            if has_process_group() and await_collectives() and self._over.is_set():  # they may have been aborted
                self._leave_function()
            self.hold()

        def after(optimizer: object, args: Any, kwargs: Any) -> None:
            if not self.releases_at_boundary:
                self.release()

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    # In the listener's thread

    def _listen(self) -> None:
        """Read the messages of the agent until it closes the channel. The main thread waits for the result."""
        try:
            while (received := self._channel.receive(wait=True)) is not None:
                self._handle(*received)
            self._resumes.put(None)
        except Exception as error:
            self._resumes.put(error)

    def _handle(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, Park) and message.round == self._round:
            self._end_round()
        elif isinstance(message, Resume):
            if len(fds) != 2:  # the kernel drops those that would be too many for this process
                raise OSError(errno.EMFILE, "the descriptors of the output have not arrived")
            self._round = message.round
            self._over.clear()
            self._resumes.put((message, fds))

    def _end_round(self) -> None:
        """Make the main thread leave the script's function."""
        self._over.set()
        store_port = int(os.environ.get("MASTER_PORT") or 0)
        while not self._left.is_set():  # repeated, because the function may create another process group
            try:
                self._groups.end_collectives(store_port)
            except Exception as error:  # such as too many open files; the main thread may leave without it
                log.warning("round %d: the collectives cannot be ended: %r", self._round, error)
            if not self._left.wait(_INTERRUPT_DELAY) and self._main_thread is threading.main_thread():
                signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT_SIGNAL)


@functools.cache
def take_seat() -> Seat | None:
    """Return the seat of this process; None if its agent cannot park it, or there is none.

    A child process of a worker has the worker's environment, but another process id. The agent never parks it.
    """
    name, page = os.environ.get(_CHANNEL_VARIABLE), own_control_page()
    if not name or page is None:
        return None
    try:
        return Seat(WorkerChannel.connect(name), page)
    except OSError as error:
        log.warning("this process cannot stay for the next round: %s", error)
        return None


def _is_of_collective(error: BaseException) -> bool:
    """Return whether an error says that a peer, or the network to it, has failed."""
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        word in text for word in ("gloo", "NCCL", "Connection closed by peer")
    )
