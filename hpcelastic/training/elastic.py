"""Training whose state stays in memory when nodes are lost, join or leave.

At the beginning of each step, the *boundary*, the state of a rank is whole. Parameters and optimizer state change only
in ``optimizer.step()``, which comes last in a step. So a rank whose step fails before it has reached the optimizer goes
back to the boundary without a copy of them: only small things are copied at each boundary, such as the states of the
random number generators. A rank that fails between the optimizer's step and the next boundary has no whole state, and
receives one.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeVar

from hpcelastic.errors import ConfigError
from hpcelastic.ipc.marks import MarkKind, Source

from .batches import GlobalBatches
from .checkpoints import Checkpoints
from .context import context
from .control_page import mark
from .device_groups import backends
from .learning_rates import scale_learning_rates
from .loading import Batches, Loading
from .periodic_saves import PeriodicSaves
from .process_groups import gather_objects, has_process_group
from .recovery import Held, choose
from .rollback import permitted_state
from .rounds import Seat, take_seat
from .shards import is_sharded_model
from .small_state import SmallState
from .state_checks import StateChecks
from .stop import must_save, on_agents_interface, report_progress, should_stop
from .transfer import receive_state, send_state

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")


class Elastic:
    """The state of a training, which survives in memory when workers and nodes are lost, join or leave.

    A state that each rank holds completely survives as long as one of these ranks does. A sharded state continues from
    its newest snapshot in memory.

    ``model``, ``optimizer`` and each object in ``others`` have ``state_dict()`` and ``load_state_dict()``, such as a
    learning-rate schedule, a gradient scaler, or a second model and its optimizer. They are attributes of this object
    under the same names. ``state`` is a dictionary for your own values: numbers, strings, tensors, and containers of
    them. ``batches`` determines the samples of each step: `GlobalBatches`, or `ShardedBatches` for data that are read
    in order.

    Every ``save_every`` steps rank 0, or every rank of a sharded model, saves a checkpoint to ``checkpoints``, for the
    case that all nodes are lost. With ``save_every="auto"`` the interval follows from the time for which a save stops
    the training, and from the failures of the run.

    Every ``snapshot`` steps the state is kept in memory by `Checkpoints.snapshot`, which needs ``checkpoints``. With
    ``snapshot="auto"`` this happens as often as it takes at most 1 % of the time, and only if the state is sharded or
    all ranks are on one node. With 0 it does not happen.

    ``metrics`` is for the metrics of the current step, and empty at its beginning. If ``train`` sets the metric there
    that ``Checkpoints(best=...)`` names, the state after the step is saved with it. A ``loss`` is shown by `hpcelastic
    status`, in the notebook and in the report.

    ``spike`` is the factor for `check`: a loss that is greater than this many times the median of the last 100 is bad.
    With ``check_replicas`` the ranks compare their parameters every so many steps. A rank whose parameters differ from
    those of most ranks ends, and a new process takes its place.

    ``loader`` has arguments for the DataLoader of `steps`, such as ``{"num_workers": 4}``.

    Examples:
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1), torch.arange(8.0).reshape(8, 1))
        >>> model = torch.nn.Linear(1, 1)
        >>> elastic = Elastic(
        ...     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), batches=GlobalBatches(8, 4)
        ... )
        >>> def train(elastic):
        ...     for step, (x, y) in elastic.steps(data, last=10):
        ...         loss = torch.nn.functional.mse_loss(elastic.model(x), y, reduction="sum")
        ...         elastic.optimizer.zero_grad()
        ...         elastic.scale_loss(loss).backward()
        ...         elastic.optimizer.step()
        ...     return elastic.step
        >>> elastic.run(train)
        10
    """

    def __init__(
        self,
        *,
        model: "torch.nn.Module",
        optimizer: "torch.optim.Optimizer",
        batches: Batches,
        checkpoints: Checkpoints | None = None,
        save_every: int | Literal["auto"] = 0,
        snapshot: int | Literal["auto"] = "auto",
        state: dict[str, Any] | None = None,
        spike: float | None = None,
        check_replicas: int = 0,
        loader: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.checkpoints = checkpoints
        self._saves = PeriodicSaves(checkpoints, save_every, snapshot, is_sharded_model(model))
        self._checks = StateChecks(checkpoints, spike, check_replicas)
        self.state = {} if state is None else state
        self.metrics: dict[str, float] = {}
        self.step = 0
        """The number of steps that are complete."""

        self._data = Loading(batches, loader or {})
        self._parts = {"model": model, "optimizer": optimizer, **others}
        for name, part in self._parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(f"{name} has no state_dict() and load_state_dict(); put other values into state=")
            setattr(self, name, part)
        self._held: Held | None = None
        """The state at the last boundary; None before the first one, and once it is no longer whole."""

        self._begun = False
        """Whether the objects have been trained or loaded, so that they are no longer those of the beginning."""

        self._small = SmallState(self.state)
        self._worker = context()
        """The place of this process in the round. Read once in a round, because each step needs it."""

        self._seat: Seat | None = None
        for optimizer_ in self._optimizers():
            optimizer_.register_step_pre_hook(self._begin_change)
            if isinstance(batches, GlobalBatches) and batches.lr is not None:
                scale_learning_rates(optimizer_, lambda: batches.lr_factor(self._batch_size()))

    def run(self, train: Callable[..., Result], *args: Any) -> Result:
        """Call ``train(self, *args)`` in each round, with the newest state, and return its result.

        The process group is initialised before each call, for a single rank too, and destroyed after it. What holds
        the process group, such as DistributedDataParallel, must be made in ``train``.

        A model whose parameters are sharded holds the process group too. So the function that makes the model, and this
        object, must be a `resumable` one. The state is then in the snapshots and checkpoints that all ranks save.
        """
        seat = take_seat()
        if self._saves.sharded and seat is not None and not seat.is_in_function:
            raise ConfigError(
                "the parameters of the model are sharded over the ranks of this round, and the next round has others; "
                "make the model and Elastic in a function, and call it by resumable(function)()"
            )
        if seat is None or self._saves.sharded:
            return self._run_round(train, args)
        self._seat = seat
        seat.releases_at_boundary = True
        try:
            return seat.run(lambda: self._run_round(train, args))
        finally:
            seat.releases_at_boundary = False

    def steps(self, data: Any, last: int) -> Iterator[tuple[int, Any]]:
        """Yield the number of each step up to ``last``, and this rank's share of its batch.

        Steps begin with 0. ``data`` is a map-style dataset. With `ShardedBatches` it is a `ShardedDataset`. An
        ``IterableDataset`` of torch, which yields the samples of this rank, works as long as the world size stays. A
        share may be empty: it has the structure of a batch, and no samples.

        The iterator ends early if this round must end, and ``train`` must then return; see `should_stop`. Before that,
        a state that the next round would lack is saved, or kept in memory if nodes only join.
        """
        shares = self._data.shares(data, self.step, last, self._worker)
        self._small.find_buffers(self._parts.values())
        self._commit(self.step, self.samples)
        mark(MarkKind.RESTORED, self.step)
        mark(MarkKind.TOTAL, last)
        while self.step < last:
            if should_stop():
                self._keep_for_next_round()
                return
            if not self._saves.sharded:
                self._checks.replicas(self.model, self.step)
            if self._held is not None and self._saves.snapshots.is_due(self.step):
                self._saves.snapshots.take(self._held, self._state_dict)
            self.metrics = {}
            yield self.step, next(shares)
            if "loss" in self.metrics and self._worker.rank == 0:
                report_progress(loss=float(self.metrics["loss"]))
            self._commit(self.step + 1, self.samples + self._batch_size())
            if self._saves.is_due(self.step, self.metrics):
                self._save(wait=False)
        self._save()
        mark(MarkKind.DONE, self.step)

    @property
    def batches(self) -> Batches:
        """The samples of each step."""
        return self._data.batches

    @property
    def samples(self) -> int:
        """The number of samples, over all ranks, in the steps that are complete."""
        return self._data.samples

    def scale_loss(self, loss: "torch.Tensor") -> "torch.Tensor":
        """Return the *sum* of the losses over this rank's share, scaled for DistributedDataParallel.

        The mean over the ranks, which DistributedDataParallel computes, is then the mean over the global batch, for any
        number of ranks. The loss of each piece of `parts` is scaled in the same way.
        """
        return loss * (self._worker.world_size / self._batch_size())

    def check(self, loss: SupportsFloat) -> None:
        """Raise `PoisonedState` if a loss of the current step is not finite, or more than ``spike`` times the median.

        Call it before ``optimizer.step()``. All ranks then return to an older state: that of the newest checkpoint, and
        if the loss is bad in the same step again, that of the one before. If this does not help, the node of the rank
        is drained, and at last the run ends. To read the loss, the CPU waits for the GPU.
        """
        self._checks.loss(loss, self.step)

    def parts(self, batch: Any, ddp: Any = None) -> Iterator[Any]:
        """Yield pieces of this rank's share with at most ``max_per_rank`` samples each, to accumulate gradients.

        So the global batch stays when the world shrinks and a share no longer fits into memory. All pieces but the last
        run under ``ddp.no_sync()``. The number of pieces is the same on all ranks, so a piece may be empty, as a share
        may. Without ``max_per_rank`` the share is the only piece.

        A piece has slices of the tensors and lists in ``batch``, in nested dicts, lists and tuples. The first dimension
        of each tensor must be the samples; ``TypeError`` is raised for what cannot be divided.

        Examples:
            >>> import torch
            >>> model = torch.nn.Linear(1, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            >>> elastic = Elastic(model=model, optimizer=optimizer, batches=GlobalBatches(8, 6, max_per_rank=4))
            >>> data = torch.utils.data.TensorDataset(torch.ones(8, 1))
            >>> for step, batch in elastic.steps(data, last=1):
            ...     optimizer.zero_grad()
            ...     for (x,) in elastic.parts(batch):
            ...         elastic.scale_loss(model(x).sum()).backward()
            ...         print(len(x), "samples")
            ...     optimizer.step()
            3 samples
            3 samples
        """
        return self._data.parts(batch, ddp, self.step, self._worker)

    # Rounds

    def _run_round(self, train: Callable[..., Result], args: Sequence[Any]) -> Result:
        import torch.distributed as dist

        self._roll_back()
        self.metrics = {}
        worker = self._worker = context()
        ours = not has_process_group()
        if ours:
            # The only rank of a round has a group too, because DistributedDataParallel needs one.
            place: dict[str, Any] = {}
            if worker.world_size == 1:
                store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not list it among its exports
                place = {"store": store, "rank": 0, "world_size": 1}
            with on_agents_interface():
                dist.init_process_group(backends(), **place)
            parameter = next(self.model.parameters(), None)
            if self._seat is not None and parameter is not None and parameter.is_cuda and worker.world_size > 1:
                self._seat.connect(parameter.device)
        self._recover()
        self._saves.begin_round(worker, self.step)
        self._checks.begin_round(worker.world_size)
        result = train(self, *args)
        if ours and has_process_group():
            dist.destroy_process_group()
        return result

    def _roll_back(self) -> None:
        """Return to the last boundary, if the state is still that of the boundary."""
        if self._held is not None:
            self._small.restore()
            for optimizer in self._optimizers():
                optimizer.zero_grad()

    def _recover(self) -> None:
        """Continue from the newest whole state that any rank, or the disk, has."""
        held, rank = gather_objects(permitted_state(self._held)), self._worker.rank
        # A state of the last round is not older than any on disk, which need not be asked then.
        recent = any(state is not None and state.round == self._worker.round - 1 for state in held)
        choice = choose(held, None if recent or self.checkpoints is None else self.checkpoints.newest())
        if choice.state is None:
            if self._begun:
                raise RuntimeError(
                    "no rank has a whole state and there is no checkpoint to begin with; this process has trained, so "
                    "another one must begin anew; give Elastic checkpoints=Checkpoints() and save_every"
                )
            mark(MarkKind.SOURCE, Source.BEGINNING)
            return
        if not choice.sources:
            assert self.checkpoints is not None
            like, before = self._state_dict(), (self._held, self._begun)
            self._begin_change()
            checkpoint = self.checkpoints.load(like=like)
            if checkpoint is None:
                self._held, self._begun = before  # nothing has been overwritten
            else:
                self._load(checkpoint.state)
        elif rank in choice.receivers:
            mark(MarkKind.SOURCE, Source.PEER)
            self._load(receive_state(choice, rank))
        else:
            mark(MarkKind.SOURCE, Source.KEPT)
            if choice.receivers:
                send_state(self._state_dict(), choice, rank)
        if rank not in choice.sources:
            _seed(self.batches.seed, self.step, rank)

    def _commit(self, step: int, samples: int) -> None:
        """Note that the state after ``step`` steps, which had ``samples`` samples, is whole."""
        if self._held is None or self._held.step != step:
            self._small.copy()
        self.step, self._data.samples = step, samples
        self._held = Held(self._worker.round, step)
        if self._seat is not None:
            self._seat.release()

    def _begin_change(self, *_: object) -> None:
        """Note that the objects change now, in the optimizer's step or a load. The next boundary has a whole state."""
        self._held, self._begun = None, True

    def _keep_for_next_round(self) -> None:
        """Save a state that no other node keeps. If no node leaves, a sharded state is kept in memory if possible."""
        assert self._held is not None
        saves = must_save()
        if self._saves.sharded and not self._begun:
            return  # nothing is lost, and reading the state of an optimizer before its first step would change it
        if self._saves.sharded and not saves:
            saves = not self._saves.snapshots.keep(self._held, self._state_dict)
        if saves:
            self._save()

    def _save(self, *, wait: bool = True) -> None:
        """Save the state, unless it is saved already; in the background, or ``wait`` until it is on disk."""
        if (self._worker.rank == 0 or self._saves.sharded) and self._held is not None:
            self._saves.save(self._held, self._state_dict, self.metrics, wait=wait)

    def _state_dict(self) -> dict[str, Any]:
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        if self._saves.sharded:
            from torch.distributed.checkpoint.state_dict import get_state_dict

            # It knows how the state of the optimizer is sharded, and makes that state if there is none yet: by a step
            # without gradients, which changes nothing else. An optimizer without a state makes one each time.
            before = self._held, self._begun
            parts["model"], parts["optimizer"] = get_state_dict(self.model, self.optimizer)
            self._held, self._begun = before
        return {"step": self.step, "state": self.state, "parts": parts, "data": self._data.state_dict()}

    def _load(self, saved: dict[str, Any]) -> None:
        missing = self._parts.keys() ^ saved["parts"].keys()
        if missing:
            raise ConfigError(f"the state of the run and this script differ in {', '.join(sorted(missing))}")
        parts = dict(saved["parts"])
        self._begin_change()
        if self._saves.sharded:
            from torch.distributed.checkpoint.state_dict import set_state_dict

            model, optimizer = parts.pop("model"), parts.pop("optimizer")
            set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        for name, state in parts.items():
            self._parts[name].load_state_dict(state)
        self.state.clear()
        self.state.update(saved["state"])
        self._data.load_state_dict(saved["data"])
        self.step = saved["step"]

    def _optimizers(self) -> list[Any]:
        return [part for part in self._parts.values() if hasattr(part, "register_step_pre_hook")]

    def _batch_size(self) -> int:
        """Return the number of samples in the batch of the current step, over all ranks."""
        return self._data.size(self.step, self._worker.world_size)


def _seed(seed: int, step: int, rank: int) -> None:
    """Seed the random number generators of a rank that has not been in the previous step."""
    import torch

    text = f"{seed}/{step}/{rank}"
    random.seed(text)
    torch.manual_seed(random.getrandbits(63))
    if "numpy.random" in sys.modules:
        sys.modules["numpy"].random.seed(random.getrandbits(32))
