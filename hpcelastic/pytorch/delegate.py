"""Takes part in a run for an agent that is not ours, and that starts and stops its workers itself.

Such an agent asks for a round when no worker of its own is left, is handed its part, and asks now and then whether the
round goes on. Whatever becomes of it, its workers are killed before anybody can go on without it: they carry the mark
by which the guard knows them. They inherit it from this process's environment, where it is from when the agent is
handed its part until it asks for the first time whether the round goes on.
"""

import atexit
import os
import select
import threading
from dataclasses import dataclass, replace

from hpcelastic.agent.address import interface_of
from hpcelastic.agent.bell import Bell, heed, open_network
from hpcelastic.agent.conduct import Action, Actions, Ask, Conduct, Reserve, Say, Start, Stop, carry_out
from hpcelastic.agent.guard import MARKER, boottime, kill_marked
from hpcelastic.agent.guarded import Guard
from hpcelastic.agent.inbox import Inbox
from hpcelastic.agent.patience import Patience
from hpcelastic.agent.store_port import StorePort
from hpcelastic.errors import HpcElasticError, StoreError
from hpcelastic.network import News
from hpcelastic.protocol.assignment import Assignment
from hpcelastic.protocol.state import Phase, State
from hpcelastic.pytorch.marking import Exported
from hpcelastic.rendezvous.rendezvous import Outcome, Rendezvous
from hpcelastic.rendezvous.thread import RendezvousThread
from hpcelastic.slurm.entry import Entered
from hpcelastic.store import files
from hpcelastic.store.events import EventLog
from hpcelastic.store.keyvalue import remove_stores
from hpcelastic.store.paths import RunPaths

_PARTING = 5.0
"""Seconds that the last word of a node may take to reach the shared filesystem."""


_END_OF_RUN = 1.0
"""Seconds for which a node that has succeeded waits to hear that the run has ended, before it leaves."""


@dataclass(frozen=True)
class WorkersEnded:
    """No worker of ``round`` is left here."""

    round: int
    succeeded: bool
    """Whether all have succeeded, so that the agent starts none again."""


class Left(HpcElasticError):
    """The node must take no part any more, though the run may go on."""


class Delegate:
    """A node of the run in ``paths``, from its first word to its last; its methods are for one thread.

    What is decided is `Conduct`'s, carried out in a thread of its own; here the others wait for it.
    """

    def __init__(self, paths: RunPaths, here: Entered, doorbell: bool = True) -> None:
        self._paths, self._report = paths, here.report
        self._node, self._lease = here.member.node, here.settings.rendezvous.lease
        files.make_directory(paths.events)
        self._inbox: Inbox[Outcome | HpcElasticError | WorkersEnded] = Inbox()

        self._network = open_network(paths, here.member, self._heard, here.report) if doorbell else None
        member = replace(here.member, bell=self._network.port if self._network else 0)
        self._conduct = Conduct(member, self._lease, boottime)
        self._patience = Patience(here.settings.rendezvous.join_timeout)
        self._events = EventLog(paths.event_log(self._node), member.name)
        bell = Bell(self._network) if self._network else None
        rendezvous = Rendezvous(paths, self._node, here.settings, boottime, here.lock, bell)
        self._port: StorePort | None = None
        self._version, self._reason = 0, ""
        self._changed = threading.Condition()
        """Notified of every change of what follows."""

        self._state = here.state
        self._idle = True
        """Whether no worker is left, and the agent waits for a round."""

        self._part: Assignment | None = None
        """What its workers are to do or do."""

        self._over = ""
        """Why they are to be stopped; empty if they are not."""

        self._error: HpcElasticError | None = None
        """What has ended our part in the run."""

        self._closing = False
        presence = (self._network.presence.fileno(),) if self._network else ()
        self._guard = Guard(self._node, presence)
        facts = {"RUN_DIR": str(paths.root), "RUN_ID": here.state.run_id, "NODE": member.name}
        facts["INTERFACE"] = interface_of(member.address)
        self._facts = {MARKER: self._node, **{f"HPCELASTIC_{name}": value for name, value in facts.items()}}
        self._exported = Exported()
        poll = here.settings.rendezvous.poll
        self._rendezvous = RendezvousThread(rendezvous, member, poll, self._inbox.deliver, self._renewed)
        self._thread = threading.Thread(target=self._run, name="delegate", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # For the agent

    @property
    def state(self) -> State:
        """The run as it was last seen."""
        return self._state

    @property
    def name(self) -> str:
        """Our node's name in the run."""
        return self._conduct.member.name

    @property
    def node(self) -> str:
        """Our node's id in the run."""
        return self._node

    @property
    def part(self) -> Assignment | None:
        """What its workers are to do or do; None before the first round, and while the agent waits for the next."""
        return self._part

    @property
    def succeeded(self) -> bool:
        """Whether the node has said that its workers have succeeded."""
        return self._conduct.member.final

    @property
    def parted(self) -> bool:
        """Whether the others go on without us, by now or as soon as we have said goodbye."""
        standing_by = self._part is None and self._state.phase is Phase.RUNNING
        return bool(self._over) or standing_by or isinstance(self._error, Left)

    @property
    def over(self) -> str:
        """Why the workers are to be stopped, which the agent does before it asks for the next round; empty if not.

        Raises what has ended our part in the run.
        """
        self._exported.remove()
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._over

    def next_round(self) -> Assignment | None:
        """Wait for a round, no worker of ours being left; our part of it, or None if the run has ended.

        Raises Left if this node must take no part any more, RendezvousTimeout if no round formed in time, StoreError
        if the run's directory could not be used for as long.
        """
        self._exported.remove()
        with self._changed:
            ended = self._part.round if self._part else 0
        self._free()
        with self._changed:
            self._idle, self._part, self._over = True, None, ""
            self._changed.notify_all()
        self._inbox.deliver(WorkersEnded(ended, succeeded=False))
        with self._changed:
            self._changed.wait_for(lambda: self._part or self._error or self._state.phase.final)
            part = self._part
        if part is None and self._error is not None:
            raise self._error
        if part is not None:
            round = str(part.round)
            self._exported.set({**self._facts, "HPCELASTIC_ROUND": round, "HPCELASTIC_TOKEN": round})
            self._give_back_port()  # as late as possible: rank 0 is about to bind it
        return part

    def finish(self) -> None:
        """Say that the workers of this node have succeeded. The agent must not ask for another round."""
        self._exported.remove()
        part = self._part
        if part is None:
            return
        self._free()
        with self._changed:
            self._idle, self._part = True, None
            self._changed.notify_all()
        self._inbox.deliver(WorkersEnded(part.round, succeeded=True))
        with self._changed:
            self._changed.wait_for(lambda: self.succeeded or self._error)

    def await_the_end(self) -> bool:
        """Whether the run has ended, which takes a moment after the last node has succeeded."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state.phase.final, _END_OF_RUN)

    def close(self) -> None:
        """Say goodbye, no worker of ours being left, so that nobody waits for our lease."""
        atexit.unregister(self.close)
        if self._closing:
            return
        self._exported.remove()
        self._free()
        with self._changed:
            self._closing = self._idle = True
            self._changed.notify_all()
        self._inbox.wake()
        self._thread.join()
        self._do(self._conduct.say_goodbye())
        if not self._rendezvous.stop(_PARTING):
            self._report("could not say goodbye in the run's directory; the others will wait for the lease to run out")
        self._events.close(_PARTING)
        self._give_back_port()
        if self._network:
            self._network.close()
        self._guard.__exit__(None, None, None)

    def _free(self) -> None:
        """See to it that no process is left of what the agent's workers have started, which is what we will say."""
        if self._part is not None:
            kill_marked(self._node, self._guard.pid)
            self._guard.disarm()

    # In its own thread

    def _run(self) -> None:
        try:
            self._do(self._conduct.found(self._state))
            self._rendezvous.start()
            if self._network:
                self._network.start()
            self._events.write("agent started", address=self._conduct.member.address, pid=os.getpid())
            while not self._closing and self._error is None:
                self._turn()
        except HpcElasticError as error:
            self._fail(error)
        except Exception as error:  # our mistake: the agent must hear of it rather than wait for ever
            self._fail(HpcElasticError(f"internal error: {error!r}"))

    def _turn(self) -> None:
        left = self._patience.left(trains=self._conduct.part is not None)
        ready, _, _ = select.select([self._inbox.fileno(), self._guard.fileno()], [], [], left)
        if self._guard.fileno() in ready and self._guard.heard():
            self._patience.doubt()
            where = self._paths.root
            self._report(f"the lease ran out: the workers were killed; is the filesystem of {where} slow or stuck?")
            self._events.write("fenced", round=self._conduct.member.round)
            self._do(self._conduct.fenced())
        if self._inbox.fileno() in ready:
            self._inbox.heard()
        while self._inbox and not self._closing:
            self._take(self._inbox.take())
        if self._conduct.leaving and self._conduct.part is None:
            notice = self._conduct.notice
            raise Left(f"this node takes no part any more: {notice.reason if notice else ''}")
        if self._patience.left(trains=self._conduct.part is not None) == 0.0:
            raise self._patience.lost(self._paths.root, self._reason)

    def _take(self, message: Outcome | HpcElasticError | WorkersEnded) -> None:
        if isinstance(message, WorkersEnded):
            self._ended(message)
        elif isinstance(message, Outcome):
            self._learned(message)
        elif isinstance(message, StoreError):
            if self._patience.failed(message):
                self._report(f"{message}; trying again")
                self._events.write("trouble", error=str(message))
            self._do(self._conduct.troubled())
        else:
            raise message

    def _ended(self, ended: WorkersEnded) -> None:
        part = self._conduct.part
        if part is not None and part.round == ended.round:
            if ended.succeeded:
                self._do(self._conduct.workers_succeeded(final=True))
                with self._changed:
                    self._changed.notify_all()
            else:
                self._do(self._conduct.lose_patience("the agent has stopped them"))
        elif ended.succeeded:  # others had ended the round before they heard of it
            self._do(self._conduct.say_goodbye())
            raise Left(f"the workers have succeeded after round {ended.round} had ended")

    def _learned(self, outcome: Outcome) -> None:
        self._patience.learned(outcome)
        state = outcome.state
        if outcome.version != self._version:
            self._events.write(
                "state", version=outcome.version, phase=state.phase.value, round=state.round, reason=state.reason
            )
        if outcome.reason != self._reason and not state.phase.final:
            self._report(outcome.reason)
        self._version, self._reason = outcome.version, outcome.reason
        with self._changed:
            self._state = state
            self._changed.notify_all()
        self._do(self._conduct.learned(state, outcome.lease_from, outcome.settled))

    def _do(self, actions: Actions) -> None:
        carry_out(actions, self._act)

    def _act(self, action: Action) -> int | None:
        if isinstance(action, Reserve):
            return self._reserve_port()
        if isinstance(action, Say):
            self._rendezvous.say(action.member)
        elif isinstance(action, Start):
            self._hand_over(action)
        elif isinstance(action, Stop):
            self._await_the_end(action.reason)
        elif isinstance(action, Ask):
            return 0  # such workers are stopped at once: their agent knows no other way
        return None  # the run's end is in the state

    def _hand_over(self, start: Start) -> None:
        self._guard.arm(start.lease_from)
        if start.part.group_rank == 0:
            until = start.part.round - 2
            threading.Thread(target=remove_stores, args=(self._paths, until), name="sweep", daemon=True).start()
        with self._changed:
            self._part, self._idle = start.part, False
            self._changed.notify_all()

    def _await_the_end(self, reason: str) -> None:
        """Have the workers stopped; the lease is renewed meanwhile, in a thread of its own."""
        with self._changed:
            if not self._idle:
                self._over = reason
                if not self._state.phase.final:
                    self._report(f"the workers are to be stopped: {reason}")
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._idle)

    def _reserve_port(self) -> int:
        self._give_back_port()
        try:
            self._port = StorePort.open()
        except OSError as error:
            raise HpcElasticError(f"{self._node}: no port for the workers' store: {error}") from error
        return self._port.port

    def _give_back_port(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            port.close()

    def _fail(self, error: HpcElasticError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # From other threads

    def _heard(self, news: News) -> None:
        self._rendezvous.hear(heed(news))

    def _renewed(self, lease_from: float) -> None:
        self._guard.until(lease_from + self._lease)
