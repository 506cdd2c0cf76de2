"""SLURM as an agent's surroundings: says what a signal means, asking one question for a whole job."""

import signal
import time
from collections.abc import Callable

from hpcelastic.agent.surroundings import STOP, USER_SIGNALS
from hpcelastic.errors import SlurmError, StoreError
from hpcelastic.protocol.state import Notice
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.warnings import Policy, guess, meaning
from hpcelastic.slurm.watch import Watch

_TURN = 2.0
"""Seconds after which the next agent of a job asks, if the one before has not told all of the answer."""

_TURNS = 5
"""So many agents ask one after the other; what the first of them says, all others read in the register."""


class SlurmSurroundings:
    """What SLURM means by its signals to the job of ``task``; ``checkpoint`` ends the round for one and goes on."""

    repeats = True

    def __init__(self, task: SlurmTask, policy: Policy, checkpoint: Callable[[], object], watch: Watch) -> None:
        self._task = task
        self._policy = policy
        self._checkpoint = checkpoint
        self._watch = watch
        self.learned, self.stop, self.start = watch.learned, watch.stop, watch.start
        self.turn = _TURN * min(task.node_id, _TURNS) if task.nodes > 1 else 0.0

    def meaning(self, signum: int) -> Notice | None:
        """See `hpcelastic.agent.surroundings`."""
        if signum in STOP and signum != signal.SIGTERM:
            return Notice(signal.Signals(signum).name, self._policy.stop_grace)  # from a person's terminal
        polite = signum in USER_SIGNALS
        asked = time.monotonic() - self.turn
        try:
            said = meaning(scheduler.job_info(self._task.name), polite, self._policy)
        except SlurmError:
            return guess(polite, self._policy, time.monotonic() - asked)
        if isinstance(said, Notice):
            return said
        self._checkpoint()
        return None

    def others_come(self) -> bool:
        """See there."""
        try:
            outlook = self._watch.outlook()
        except (SlurmError, StoreError):
            return False
        return outlook.coming + outlook.pending > 0

    def without_enough(self) -> Notice | None:
        """See there. A job of one node is not the one that lacks nodes."""
        if self._task.nodes == 1 or not self._policy.requeue:
            return None
        return Notice("fewer nodes than nodes.min are left, and no others come", 0.0, again="shortage")
