"""train_transformers.py with a callback that saves at the end of a step when SLURM takes a node or a new one comes."""

from typing import Any

import train_transformers
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hpcelastic.training import should_stop


class StopsInTime(TrainerCallback):
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if should_stop():
            control.should_save = control.should_training_stop = True


if __name__ == "__main__":
    train_transformers.main(StopsInTime())
