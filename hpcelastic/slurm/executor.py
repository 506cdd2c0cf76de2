"""submitit's SLURM executor, for use from anywhere and for arrays of any length."""

import contextlib
import os
import shlex
import stat
import uuid
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission

_JOB_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_")
_USER_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")


def _epilogue(folder: Path) -> str:
    """Return the lines of the batch script after srun.

    They handle the file in ``folder`` that agents leave which cannot query SLURM, for example in a container. Until the
    batch script has ended, no state of the job shows whether SLURM requeues it by itself, so the lines query SLURM's
    version. An agent that can query SLURM needs no version: see `hpcelastic.slurm.requeue`.
    """
    requeue_request, success = (shlex.quote(f"{folder.absolute()}/{name}-") for name in ("requeue", "succeeded"))
    # The plain id of an array's last element means the whole array.
    return f"""
status=$?
job=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
id=$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}
request={requeue_request}$id
success={success}$id
if [ -e "$request" ]; then
    requested=$(cat "$request"); rm "$request"
    # Since 24.05, SLURM itself requeues a job that ends during its preemption. A request would then requeue it twice.
    if scontrol show job "$job" | grep -q 'PreemptTime=[0-9]'; then
        version=$(scontrol --version)
        if [[ ${{version##* }} < 24.05 ]]; then requested=requeue; else requested=; fi
    fi
    if [ "$requested" = requeue ]; then scontrol requeue "$job"; fi
fi
# srun may report a lost node, although the run has succeeded without it.
if [ -e "$success" ]; then status=0; fi
exit $status
"""


def _forbid_others_to_write(path: Path) -> None:
    """Let only the owner change a file of submitit, which the job runs. submitit creates it with the mode of the umask.

    The group of a shared run may enter its directory.
    """
    path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


class AgentExecutor(submitit.SlurmExecutor):
    """An executor that also works on a machine without SLURM and in a notebook within another job."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    def make_array(self, length: int) -> None:
        """Submit arrays of ``length`` elements from now on. All elements may run at the same time."""
        self.parameters.update(map_count=length, array_parallelism=length)

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return super()._make_submission_file_text(command, uid) + _epilogue(self.folder)

    def _submit_command(self, command: str) -> submitit.Job[Any]:
        for pickle in self.folder.glob("*.pkl"):
            with contextlib.suppress(FileNotFoundError):  # another submission renames its own
                _forbid_others_to_write(pickle)
        return super()._submit_command(command)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        if submission_file_path.exists():  # else the command is only shown
            _forbid_others_to_write(submission_file_path)
        # The new job would inherit our job's variables: with its SLURM_NTASKS=1, srun starts one agent for all nodes.
        inherited = [name for name in os.environ if name.startswith(_JOB_PREFIXES) and name not in _USER_VARIABLES]
        unset = ["env", *(f"--unset={name}" for name in inherited)] if inherited else []
        return [*unset, *super()._make_submission_command(submission_file_path)]

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[submitit.Job[Any]]:
        if "map_count" not in self.parameters:
            return list(super()._internal_process_submissions(delayed_submissions))
        # submitit passes an array to a plain executor of its own, and does not submit a single element as an array.
        drafts = [self.folder / f"{uuid.uuid4().hex}.pkl" for _ in delayed_submissions]
        for delayed, draft in zip(delayed_submissions, drafts, strict=True):
            delayed.dump(draft)
        base = self._submit_command(self._submitit_command_str).job_id
        elements = [submitit.SlurmJob[Any](self.folder, f"{base}_{index}", [0]) for index in range(len(drafts))]
        for element, draft in zip(elements, drafts, strict=True):
            element.paths.move_temporary_file(draft, "submitted_pickle")
        return list(elements)
