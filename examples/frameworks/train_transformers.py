"""Trains a tiny BERT with the Trainer of Transformers. After a restart, also with more or fewer ranks, it resumes from
its last checkpoint. It learns which number occurs most often in a sequence; nothing is downloaded.

Nothing in it is hpcelastic's: `torchrun` runs it too.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

CLASSES, LENGTH = 4, 12
WHOLE = "whole"
"""The file that a checkpoint has when all of its files are there."""


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of small numbers, each with the number that occurs most often in it."""

    def __init__(self, count: int) -> None:
        self.numbers = torch.randint(CLASSES, (count, LENGTH), generator=torch.Generator().manual_seed(0))
        self.majority = torch.nn.functional.one_hot(self.numbers).sum(1).argmax(1)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.numbers[index], "labels": self.majority[index]}


class Telling(TrainerCallback):
    """Says how far the training is, and marks checkpoints that are whole."""

    def __init__(self, test: Sequences, step_time: float) -> None:
        self.test = test
        self.step_time = step_time

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if state.global_step:
            self.tell(args, state, given["model"], "resumed at")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        time.sleep(self.step_time)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # each rank saves a part
        if state.is_world_process_zero:
            Path(args.output_dir, f"checkpoint-{state.global_step}", WHOLE).touch()
        self.tell(args, state, given["model"], "saved")

    @torch.no_grad()
    def tell(self, args: TrainingArguments, state: TrainerState, model: torch.nn.Module, what: str) -> None:
        if state.is_world_process_zero:
            given = {"input_ids": self.test.numbers.to(args.device), "labels": self.test.majority.to(args.device)}
            training, _ = model.training, model.eval()
            result = model(**given)
            model.train(training)
            accuracy = (result.logits.argmax(1) == given["labels"]).float().mean()
            where = f"{args.world_size} ranks, loss {result.loss:.4f}, accuracy {accuracy:.3f}"
            print(f"{what} step {state.global_step}: {where}", flush=True)


def newest(output: Path) -> str | None:
    """The newest checkpoint that is whole; one rank chooses, as all must have the same."""
    found = [
        (int(mark.parent.name.partition("-")[2]), str(mark.parent)) for mark in output.glob(f"checkpoint-*/{WHOLE}")
    ]
    chosen = [max(found)[1] if found else None]
    broadcast_object_list(chosen)
    return chosen[0]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default="output/transformers", help="on a filesystem of all nodes")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-time", type=float, default=0, metavar="SECONDS", help="make each step this much longer")
    return parser.parse_args()


def make_trainer(args: argparse.Namespace, telling: Telling, **more: Any) -> Trainer:
    # Joins the other ranks, if there are any.
    arguments = TrainingArguments(
        str(args.output),
        max_steps=args.steps,  # in steps, not in epochs, which are shorter where there are more ranks
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        ddp_find_unused_parameters=False,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        **more,
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=CLASSES,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
        hidden_dropout_prob=0,  # which ranks draw differently
        attention_probs_dropout_prob=0,
    )
    return Trainer(BertForSequenceClassification(config), arguments, train_dataset=Sequences(2048), callbacks=[telling])


def end(trainer: Trainer) -> None:
    if trainer.is_world_process_zero():
        print(f"trained {trainer.state.global_step} steps", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def main() -> None:
    args = arguments()
    trainer = make_trainer(args, Telling(Sequences(256), args.step_time), per_device_train_batch_size=16, save_steps=20)
    trainer.train(resume_from_checkpoint=newest(args.output))
    end(trainer)


if __name__ == "__main__":
    main()
