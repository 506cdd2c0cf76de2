"""submitit's SLURM executor, for use from anywhere and for arrays of any length."""

import os
import shlex
import uuid
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission

_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_")
_OF_A_PERSON = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")


def _epilogue(folder: Path) -> str:
    """What follows srun: agents that could not ask SLURM, as in a container, have left a file in ``folder``.

    Until the batch script has ended, no state of the job shows whether SLURM requeues it by itself, so its version is
    asked for. An agent that can ask SLURM does without: see `hpcelastic.slurm.successor`.
    """
    wish, success = (shlex.quote(f"{folder.absolute()}/{name}-") for name in ("requeue", "succeeded"))
    # As an id alone, that of an array's last element means all of them.
    return f"""
status=$?
job=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
id=$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}
wish={wish}$id
success={success}$id
if [ -e "$wish" ]; then
    asked=$(cat "$wish"); rm "$wish"
    # Since 24.05, SLURM requeues a job that ends while it is being preempted. Asked as well, it would do so twice.
    if scontrol show job "$job" | grep -q 'PreemptTime=[0-9]'; then
        version=$(scontrol --version)
        if [[ ${{version##* }} < 24.05 ]]; then asked=requeue; else asked=; fi
    fi
    if [ "$asked" = requeue ]; then scontrol requeue "$job"; fi
fi
# srun may report a node that was lost, though the run has succeeded without it.
if [ -e "$success" ]; then status=0; fi
exit $status
"""


class AgentExecutor(submitit.SlurmExecutor):
    """Works on a machine without SLURM, and in a notebook within another job."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    def make_array(self, length: int) -> None:
        """Submit from now on arrays of ``length`` elements, which may all run at the same time."""
        self.parameters.update(map_count=length, array_parallelism=length)

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return super()._make_submission_file_text(command, uid) + _epilogue(self.folder)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # The new job would inherit what describes ours: with its SLURM_NTASKS=1, srun starts one agent for all nodes.
        ours = [name for name in os.environ if name.startswith(_OF_A_JOB) and name not in _OF_A_PERSON]
        unset = ["env", *(f"--unset={name}" for name in ours)] if ours else []
        return [*unset, *super()._make_submission_command(submission_file_path)]

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[submitit.Job[Any]]:
        if "map_count" not in self.parameters:
            return list(super()._internal_process_submissions(delayed_submissions))
        # submitit hands an array to a plain executor of its own, and makes none of a single element.
        drafts = [self.folder / f"{uuid.uuid4().hex}.pkl" for _ in delayed_submissions]
        for delayed, draft in zip(delayed_submissions, drafts, strict=True):
            delayed.dump(draft)
        base = self._submit_command(self._submitit_command_str).job_id
        elements = [submitit.SlurmJob[Any](self.folder, f"{base}_{index}", [0]) for index in range(len(drafts))]
        for element, draft in zip(elements, drafts, strict=True):
            element.paths.move_temporary_file(draft, "submitted_pickle")
        return list(elements)
