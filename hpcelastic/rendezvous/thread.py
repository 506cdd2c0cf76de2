"""The thread in which an agent's filesystem calls run, so that a hang there can't stop the agent."""

import threading
import traceback
from collections import deque
from collections.abc import Callable

from hpcelastic.errors import HpcElasticError, InternalError, StoreError
from hpcelastic.protocol.state import Member
from hpcelastic.rendezvous.rendezvous import Outcome, Rendezvous


class RendezvousThread:
    """Keeps the lease and looks whenever it is time, or somebody has news.

    ``deliver`` is called, in this thread, with the outcome of every look, or with the error that kept it from one;
    ``renewed`` before it, with the start of the lease that holds. After an error the next turn comes in ``poll``
    seconds.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        member: Member,
        poll: float,
        deliver: Callable[[Outcome | HpcElasticError], None],
        renewed: Callable[[float], None],
    ) -> None:
        self._rendezvous = rendezvous
        self._member = member
        self._poll = poll
        self._deliver = deliver
        self._renewed = renewed
        self._news: deque[Callable[[Rendezvous], None]] = deque()
        self._wake = threading.Event()
        self._said = threading.Condition()
        self._published: Member | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, member: Member) -> None:
        """Publish ``member`` from the next turn on, which comes at once."""
        self._member = member
        self._wake.set()

    def hear(self, news: Callable[[Rendezvous], None]) -> None:
        """Let the rendezvous know of something, in its own thread, before the next turn, which comes at once."""
        self._news.append(news)
        self._wake.set()

    def stop(self, timeout: float) -> bool:
        """End after the turn that publishes what was said last; False if that took longer than ``timeout`` seconds."""
        with self._said:
            published = self._said.wait_for(lambda: self._published == self._member, timeout)
        self._stopping = True
        self._wake.set()
        return published

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            pause = self._poll
            try:
                outcome = self._turn()
                pause = self._rendezvous.pause()
            except OSError as error:
                self._failed(StoreError(f"the run's directory does not answer: {error}"))
            except HpcElasticError as error:
                self._failed(error)
            except Exception as error:  # our mistake: the agent must end rather than be fenced and wait for ever
                self._deliver(InternalError(f"internal error: {traceback.format_exc()}; {error}"))
                return
            else:
                if outcome is not None:
                    self._deliver(outcome)
            self._wake.wait(pause)

    def _failed(self, error: HpcElasticError) -> None:
        self._deliver(error)
        self._rendezvous.look_again()  # who was told of trouble is to hear of its end

    def _turn(self) -> Outcome | None:
        while self._news:
            self._news.popleft()(self._rendezvous)
        member = self._member
        self._renewed(self._rendezvous.renew(member))
        outcome = self._rendezvous.look()
        with self._said:
            self._published = member
            self._said.notify_all()
        return outcome
