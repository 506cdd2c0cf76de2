"""The API for training scripts: the worker's context, checkpoints, batches for any world size, publication, stopping.

It works the same under hpcelastic, under torchrun and with plain ``python train.py``. torch is imported at first use,
so a worker that only reads its context starts at once. Most other
modules are imported at first use too.
"""

from typing import TYPE_CHECKING

from hpcelastic.lazy_names import lazy_names

# These functions have the names of their modules, so they cannot be loaded at first use.
from .context import Context, context
from .publish import claim, publish
from .store import store

if TYPE_CHECKING:
    from .batches import GlobalBatches
    from .checkpoints import Checkpoint, Checkpoints
    from .elastic import Elastic
    from .loss_check import LossCheck
    from .phases import phase
    from .rounds import resumable
    from .sharded_batches import SequentialShards, ShardedBatches, ShardedDataset
    from .stop import ignore_sigterm, on_stop, report_progress, should_stop, time_left, why_stop

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Context",
    "Elastic",
    "GlobalBatches",
    "LossCheck",
    "SequentialShards",
    "ShardedBatches",
    "ShardedDataset",
    "claim",
    "context",
    "ignore_sigterm",
    "on_stop",
    "phase",
    "publish",
    "report_progress",
    "resumable",
    "should_stop",
    "store",
    "time_left",
    "why_stop",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Checkpoint": ".checkpoints",
        "Checkpoints": ".checkpoints",
        "Elastic": ".elastic",
        "GlobalBatches": ".batches",
        "LossCheck": ".loss_check",
        "SequentialShards": ".sharded_batches",
        "ShardedBatches": ".sharded_batches",
        "ShardedDataset": ".sharded_batches",
        "ignore_sigterm": ".stop",
        "on_stop": ".stop",
        "phase": ".phases",
        "report_progress": ".stop",
        "resumable": ".rounds",
        "should_stop": ".stop",
        "time_left": ".stop",
        "why_stop": ".stop",
    },
)
