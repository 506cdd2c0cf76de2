"""train_lightning.py with a callback that saves at the end of a step when SLURM takes a node or a new one comes."""

import signal
import sys
from pathlib import Path
from typing import Any

import train_lightning
from lightning.pytorch import Callback, Trainer

from hpcelastic.training import should_stop


class StopsInTime(Callback):
    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        # Lightning's handler begins a broadcast in the middle of a step, where ranks may wait for each other for ever.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        if should_stop():
            trainer.save_checkpoint(Path(trainer.checkpoint_callback.dirpath, "last.ckpt"))
            module.tell(f"saved in epoch {trainer.current_epoch + 1}")
            sys.exit()  # trainer.should_stop would end, and save, this epoch as if it were over


if __name__ == "__main__":
    train_lightning.main(StopsInTime())
