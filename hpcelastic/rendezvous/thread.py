"""The thread in which an agent uses the filesystem, so that a filesystem that hangs does not block the agent."""

import threading
import traceback
from collections import deque
from collections.abc import Callable

from hpcelastic.errors import HpcElasticError, InternalError, StoreError
from hpcelastic.protocol.peers import News, Notification
from hpcelastic.protocol.state import Member
from hpcelastic.rendezvous.observation import Observation
from hpcelastic.rendezvous.rendezvous import Rendezvous


class RendezvousThread:
    """Renews the lease, and polls whenever a poll is due or news arrive.

    In this thread, ``deliver`` is called with the observation of each poll, or with the error that prevented it.
    ``renewed`` is called before, once the lease holds. After an error the next turn comes in ``poll`` seconds.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        member: Member,
        poll: float,
        deliver: Callable[[Observation | HpcElasticError], None],
        renewed: Callable[[], None],
    ) -> None:
        self._rendezvous = rendezvous
        self._member = member
        self._poll = poll
        self._deliver = deliver
        self._renewed = renewed
        self._calls: deque[Callable[[Rendezvous], None]] = deque()
        self._wake = threading.Event()
        self._condition = threading.Condition()
        self._published: Member | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def publish(self, member: Member) -> None:
        """Publish ``member`` from the next turn on. The next turn comes at once."""
        self._member = member
        self._wake.set()

    def call(self, function: Callable[[Rendezvous], None]) -> None:
        """Call ``function`` in this thread before the next turn. The next turn comes at once."""
        self._calls.append(function)
        self._wake.set()

    def receive(self, news: News) -> None:
        """Take account of news from the network in the next turn, which comes at once."""
        if isinstance(news, Notification):
            self._rendezvous.announce(news.version)
        self.call(lambda rendezvous: rendezvous.receive(news))

    def stop(self, timeout: float) -> bool:
        """End after the turn that publishes the newest content. False if that took longer than ``timeout`` seconds."""
        with self._condition:
            published = self._condition.wait_for(lambda: self._published == self._member, timeout)
        self._stopping = True
        self._wake.set()
        return published

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            pause = self._poll
            try:
                observation = self._turn()
                pause = self._rendezvous.pause()
            except OSError as error:
                self._failed(StoreError(f"the run's directory does not answer: {error}"))
            except HpcElasticError as error:
                self._failed(error)
            except Exception as error:  # a defect: the agent must end instead of being fenced and waiting for ever
                self._deliver(InternalError(f"internal error: {traceback.format_exc()}; {error}"))
                return
            else:
                if observation is not None:
                    self._deliver(observation)
            self._wake.wait(pause)

    def _failed(self, error: HpcElasticError) -> None:
        self._deliver(error)
        self._rendezvous.poll_again()  # the agent must learn when the directory works again

    def _turn(self) -> Observation | None:
        while self._calls:
            self._calls.popleft()(self._rendezvous)
        member = self._member
        self._rendezvous.renew(member)
        self._renewed()
        observation = self._rendezvous.poll()
        with self._condition:
            self._published = member
            self._condition.notify_all()
        return observation
