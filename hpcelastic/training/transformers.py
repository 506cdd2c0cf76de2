"""Checkpoints of the ``Trainer`` of Transformers: published atomically, in the background, for any number of ranks."""

import dataclasses
import json
import logging
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
    from transformers.trainer_callback import ExportableState
    from transformers.utils import WEIGHTS_NAME
except ImportError as error:
    raise ImportError(
        "hpcelastic.training.transformers needs two packages: pip install transformers accelerate"
    ) from error

from hpcelastic.errors import ConfigError
from hpcelastic.ipc.marks import MarkKind

from .checkpoints import Checkpoints
from .context import context
from .control_page import mark
from .local_directory import LocalDirectory
from .loss_check import LossCheck
from .process_groups import gather_objects
from .random_numbers import gather_random_states, restore_random_state
from .stop import report_progress, should_stop

log = logging.getLogger(__name__)


class CheckpointCallback(TrainerCallback):
    """Saves a checkpoint every ``save_every`` steps in the background, and when the round must end, which it then does.

    A checkpoint has the state of the model, the optimizer, the schedule, the gradient scaler, the ``Trainer`` and its
    callbacks, and of the random number generators of all ranks. Set ``save_strategy="no"``, so that the ``Trainer``
    saves none itself::

        trainer = Trainer(model, TrainingArguments(..., save_strategy="no"), train_dataset=data)
        saves = CheckpointCallback(trainer, Checkpoints(), save_every=500)
        trainer.train(resume_from_checkpoint=saves.load())

    The ``Trainer`` resumes with the batch that follows. The same batches follow for another number of ranks if it
    divides the batch, and ``gradient_accumulation_steps`` keeps the batch constant over all ranks.

    With ``check_loss``, each loss and gradient norm that the ``Trainer`` logs is checked; see `LossCheck`, which has
    ``spike``. It logs every ``logging_steps``, and replaces a loss that is not finite unless ``logging_nan_inf_filter``
    is False.
    """

    def __init__(
        self,
        trainer: Trainer,
        checkpoints: Checkpoints,
        *,
        save_every: int,
        check_loss: bool = False,
        spike: float | None = None,
    ) -> None:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError("Transformers saves the state of FSDP and DeepSpeed in a format of its own; let it save")
        self._trainer, self._checkpoints, self._save_every = trainer, checkpoints, save_every
        self._check = LossCheck(checkpoints, spike=spike) if check_loss else None
        self._is_due = False
        self._random: list[dict[str, Any]] | None = None
        """The random states of all ranks in the checkpoint; None once this rank has continued with its own."""

        self._files = ExitStack()
        """Removes the files of `load`."""

        trainer.add_callback(self)

    def load(self) -> str | None:
        """Load the newest checkpoint, and return the argument for ``Trainer.train``; None if there is none.

        Every rank calls this. The ``Trainer`` resumes from a directory, so each node writes one, in a temporary
        directory (TMPDIR). It is removed in the first step.
        """
        checkpoint = self._checkpoints.load()
        if checkpoint is None:
            return None
        self._random = checkpoint.state["random"]
        if checkpoint.state["batch"] != self._batch():
            log.warning(
                "the batches of the checkpoint have %d samples over all ranks, and now have %d, so the position in the "
                "data is another one; choose gradient_accumulation_steps for this number of ranks",
                checkpoint.state["batch"],
                self._batch(),
            )
        path, worker = "", context()
        if worker.local_rank == 0:
            files = LocalDirectory(self._checkpoints.directory)
            self._files.callback(files.remove)
            _write_files(files.path, checkpoint.state)
            path = str(files.path)
        return gather_objects(path)[worker.rank - worker.local_rank]

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # The Trainer has evaluated the last step and read the next batch, in an undisturbed and in a resumed training.
        if self._random is not None:
            gather_objects(None)  # all ranks of the node have read the files
            self._files.close()
            restore_random_state(self._random)
            self._random = None
        if self._is_due:
            self._save(wait=False)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step >= state.max_steps:
            return  # a Trainer that resumes from the last step does one more
        self._is_due = state.global_step % self._save_every == 0
        if should_stop():
            self._save(wait=True)
            control.should_training_stop = True
        elif control.should_evaluate:
            mark(MarkKind.EVALUATING, 0)  # until the next step

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        if logs and "loss" in logs and context().rank == 0:
            report_progress(total=state.max_steps, loss=float(logs["loss"]))
        if self._check is not None and logs and "loss" in logs:
            norm = logs.get("grad_norm", 0.0)
            self._check(logs["loss"] if math.isfinite(norm) else norm, state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        mark(MarkKind.DONE, state.global_step)

    def _save(self, *, wait: bool) -> None:
        self._is_due = False
        random = gather_random_states()
        if not self._trainer.is_world_process_zero():
            return
        trainer: Any = self._trainer  # has its optimizer and schedule by now
        stateful = [each for each in [*trainer.callback_handler.callbacks, trainer.control] if _is_stateful(each)]
        state: dict[str, Any] = {
            "files": {
                WEIGHTS_NAME: trainer.model.state_dict(),
                OPTIMIZER_NAME: trainer.optimizer.state_dict(),
                SCHEDULER_NAME: trainer.lr_scheduler.state_dict(),
            },
            # As the Trainer writes it.
            "trainer": json.dumps(dataclasses.asdict(dataclasses.replace(trainer.state, stateful_callbacks=stateful))),
            "random": random,
            "batch": self._batch(),
        }
        if trainer.accelerator.scaler is not None:
            state["files"][SCALER_NAME] = trainer.accelerator.scaler.state_dict()
        self._checkpoints.save(trainer.state.global_step, state, wait=wait)

    def _batch(self) -> int:
        """Return the number of samples in a step over all ranks."""
        args = self._trainer.args
        return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def _is_stateful(callback: object) -> bool:
    return isinstance(callback, ExportableState)


def _write_files(directory: Path, state: dict[str, Any]) -> None:
    """Write a state as the ``Trainer`` does."""
    import torch

    for name, content in state["files"].items():
        torch.save(content, directory / name)
    (directory / TRAINER_STATE_NAME).write_text(state["trainer"])
