"""Checkpoints of the ``Trainer`` of Lightning: published atomically, in the background, for any number of ranks."""

import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("hpcelastic.training.lightning needs a package: pip install lightning") from error

from hpcelastic.errors import ConfigError
from hpcelastic.ipc.marks import MarkKind

from .batches import GlobalBatches
from .checkpoints import Checkpoints
from .context import context
from .control_page import mark
from .loading import Loading
from .loss_check import LossCheck
from .random_numbers import gather_random_states, restore_random_state
from .shards import is_sharded
from .stop import report_progress, should_stop

_HYPERPARAMETERS = ("hyper_parameters", "hparams_", "datamodule_h")
"""How the keys of hyperparameters begin."""


class CheckpointCallback(Callback):
    """Saves a checkpoint every ``save_every`` steps in the background, and when the round must end, which it then does.

    ``Trainer.fit`` continues from the newest checkpoint, without ``ckpt_path`` or a ``ModelCheckpoint``. A checkpoint
    has all that Lightning saves, and the states of the random number generators of all ranks. Hyperparameters are left
    out, because they may be any objects, and are not read when a training continues. For the position in the data see
    `EpochBatches`.

    The strategy is that for one device, ``DDPStrategy``, or ``ModelParallelStrategy`` with a model that is sharded by
    FSDP2, of which every rank saves its part. Raises ``ConfigError`` for other strategies.

    With ``check_loss``, each loss is checked before the backward pass; see `LossCheck`, which has ``spike``.
    """

    def __init__(
        self, checkpoints: Checkpoints, *, save_every: int, check_loss: bool = False, spike: float | None = None
    ) -> None:
        self._checkpoints, self._save_every = checkpoints, save_every
        self._check = LossCheck(checkpoints, spike=spike) if check_loss else None
        self._step = 0
        """The number of steps in the last call of `on_train_batch_end`. It may be called several times in a step."""

        self._random: list[dict[str, Any]] | None = None
        """The random states of all ranks in the checkpoint that was loaded."""

        self._sigterm: Any = signal.SIG_DFL

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the newest checkpoint. After this, Lightning restores the loops, and the optimizers and schedules."""
        self._sigterm = signal.getsignal(signal.SIGTERM)
        # Such a strategy loads model and optimizer itself, from a path, before Lightning restores the rest.
        loads_itself = trainer.strategy.restore_checkpoint_after_setup
        like = _own_state(trainer) if loads_itself else None
        if like is not None and not is_sharded(like):
            raise ConfigError(
                f"{type(trainer.strategy).__name__} loads checkpoints in a format of its own; use DDPStrategy, or "
                "ModelParallelStrategy with save_distributed_checkpoint=True and a model that fully_shard has sharded"
            )
        checkpoint = self._checkpoints.load(like=like)
        if checkpoint is None:
            return
        self._step, self._random = checkpoint.step, checkpoint.state.pop("random")
        if loads_itself:
            _load_own_state(trainer, checkpoint.state)
        # The public way to restore begins with a path, and the strategies read it in different ways. This is where they
        # put the content.
        connector = trainer._checkpoint_connector
        connector._loaded_checkpoint = checkpoint.state
        if not loads_itself:
            connector.restore_datamodule()
            connector.restore_model()
            connector.restore_callbacks()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            # Lightning's handler begins a broadcast in the middle of a step, where ranks may wait for each other.
            signal.signal(signal.SIGTERM, self._sigterm or signal.SIG_DFL)
        if self._random is not None:
            restore_random_state(self._random)
            self._random = None

        if trainer.max_steps > 0:
            report_progress(total=trainer.max_steps)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step == self._step:
            return  # gradients are being accumulated, which no checkpoint has
        self._step = trainer.global_step
        stopping = should_stop()
        if stopping or self._step % self._save_every == 0:
            self._save(trainer, wait=stopping)
        if stopping:
            sys.exit()  # trainer.should_stop would end this epoch as if it were complete

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        if self._check is not None:
            self._check(loss, trainer.global_step)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mark(MarkKind.EVALUATING, 0)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mark(MarkKind.PHASE_ENDED, 0)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mark(MarkKind.DONE, self._step)

    def _save(self, trainer: Trainer, *, wait: bool) -> None:
        # The public save_checkpoint hands the same dictionary to the strategy, which may write a directory instead.
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        state = {key: value for key, value in state.items() if not key.startswith(_HYPERPARAMETERS)}
        state["random"] = gather_random_states()
        if trainer.is_global_zero or is_sharded(state):
            self._checkpoints.save(self._step, state, wait=wait)


class EpochBatches:
    """This rank's share of each batch of an epoch: the data for ``Trainer.fit``, in place of a DataLoader.

    An epoch that was interrupted continues with the next batch, for any number of ranks. ``loader`` has arguments for
    the DataLoader. All epochs have the same number of batches, so ``batches`` must not have ``per_rank``::

        trainer.fit(model, EpochBatches(trainer, data, GlobalBatches(len(data), 1024), num_workers=4))
    """

    def __init__(self, trainer: Trainer, data: Any, batches: GlobalBatches, **loader: Any) -> None:
        self._trainer, self._data, self._batches, self._loader = trainer, data, batches, loader

    def __len__(self) -> int:
        return self._batches.per_epoch

    def __iter__(self) -> Iterator[Any]:
        # Lightning restores this number from the checkpoint.
        first = self._trainer.fit_loop.epoch_loop.total_batch_idx + 1
        epoch, number = divmod(first, len(self))
        loading = Loading(self._batches, self._loader)
        loading.samples = epoch * self._batches.samples + number * self._batches.batch_size
        return loading.shares(self._data, first, (epoch + 1) * len(self), context())

    def state_dict(self) -> dict[str, Any]:
        """Return nothing. By this method Lightning knows that an epoch can be continued."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _own_state(trainer: Trainer) -> dict[str, Any]:
    """Return the state of the model and the optimizers, as it is in a checkpoint."""
    strategy = trainer.strategy
    optimizers = [strategy.optimizer_state(optimizer) for optimizer in strategy.optimizers]
    return {"state_dict": strategy.lightning_module_state_dict(), "optimizer_states": optimizers}


def _load_own_state(trainer: Trainer, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    model = trainer.strategy.model
    assert model is not None
    set_model_state_dict(model, state["state_dict"])
    for optimizer, saved in zip(trainer.strategy.optimizers, state["optimizer_states"], strict=True):
        set_optimizer_state_dict(model, optimizer, saved)
