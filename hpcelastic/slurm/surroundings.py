"""SLURM as an agent's surroundings: says what a signal means, asking as few questions as there are jobs."""

import signal
from collections.abc import Callable

from hpcelastic.agent.surroundings import STOP
from hpcelastic.errors import SlurmError
from hpcelastic.protocol.state import Notice
from hpcelastic.slurm import scheduler
from hpcelastic.slurm.environment import SlurmTask
from hpcelastic.slurm.warnings import Policy, guess, meaning

_TURN = 2.0
"""Seconds after which the next agent of a job asks, if the one before has not told all of the answer."""

_TURNS = 5
"""So many agents ask one after the other; what the first of them says, all others read in the register."""


class SlurmSurroundings:
    """What SLURM means by its signals to the job of ``task``; ``checkpoint`` ends the round for one and goes on."""

    repeats = True

    def __init__(self, task: SlurmTask, policy: Policy, checkpoint: Callable[[], object]) -> None:
        self._task = task
        self._policy = policy
        self._checkpoint = checkpoint
        self.turn = _TURN * min(task.node_id, _TURNS) if task.nodes > 1 else 0.0

    def meaning(self, signum: int) -> Notice | None:
        """See `hpcelastic.agent.surroundings`."""
        if signum in STOP and signum != signal.SIGTERM:
            return Notice(signal.Signals(signum).name, self._policy.stop_grace)  # from a person's terminal
        polite = signum == signal.SIGUSR2
        try:
            said = meaning(scheduler.job_info(self._task.job_id), polite, self._policy)
        except SlurmError:
            return guess(polite, self._policy)
        if isinstance(said, Notice):
            return said
        self._checkpoint()
        return None
