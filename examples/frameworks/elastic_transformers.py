"""Trains the model of train_transformers.py with checkpoints of hpcelastic, in the background and at any step."""

from typing import Any

from train_transformers import Sequences, Telling, arguments, end, make_trainer
from transformers import TrainerControl, TrainerState, TrainingArguments

from hpcelastic.training import Checkpoints, context, on_stop
from hpcelastic.training.transformers import CheckpointCallback

EVERY = 20


class Steps(Telling):
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        super().on_step_end(args, state, control, **given)
        if state.global_step % EVERY == 0:
            self.tell(args, state, given["model"], "saved")


def main() -> None:
    args = arguments()
    telling = Steps(Sequences(256), args.step_time)
    trainer = make_trainer(
        args,
        telling,
        save_strategy="no",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4 // context().world_size,  # each step has 32 samples, for 1, 2 or 4 ranks
    )
    on_stop(lambda: telling.tell(trainer.args, trainer.state, trainer.model, "saved"))
    saves = CheckpointCallback(trainer, Checkpoints(args.output), save_every=EVERY)
    trainer.train(resume_from_checkpoint=saves.load())
    end(trainer)


if __name__ == "__main__":
    main()
