"""The thread in which an agent's filesystem calls run, so that a hang there can't stop the agent."""

import threading
import traceback
from collections.abc import Callable

from hpcelastic.errors import HpcElasticError, StoreError
from hpcelastic.protocol.state import Member
from hpcelastic.rendezvous.rendezvous import Outcome, Rendezvous


class RendezvousThread:
    """Takes a turn of the rendezvous every ``poll`` seconds, and at once when the node has something to say.

    ``deliver`` is called, in this thread, with the outcome of every turn, or with the error that kept it from one.
    """

    def __init__(
        self, rendezvous: Rendezvous, member: Member, poll: float, deliver: Callable[[Outcome | HpcElasticError], None]
    ) -> None:
        self._rendezvous = rendezvous
        self._member = member
        self._poll = poll
        self._deliver = deliver
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
            member = self._member
            try:
                outcome: Outcome | HpcElasticError = self._rendezvous.step(member)
            except OSError as error:
                outcome = StoreError(f"the run's directory does not answer: {error}")
            except HpcElasticError as error:
                outcome = error
            except Exception as error:  # our mistake: the agent must end rather than be fenced and wait for ever
                self._deliver(HpcElasticError(f"internal error: {traceback.format_exc()}; {error}"))
                return
            else:
                with self._said:
                    self._published = member
                    self._said.notify_all()
            self._deliver(outcome)
            self._wake.wait(self._poll)
