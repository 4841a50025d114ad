"""What a worker does with each kind of task, for the streams of one dataset."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate

from loaderd_server.batching.collate import DefaultCollate
from loaderd_server.batching.faults import failure_of
from loaderd_server.batching.fetch import (
    NO_ROW,
    BatchedFault,
    Fetched,
    Fetcher,
    Progress,
    SampleTask,
    Transform,
)
from loaderd_server.batching.imports import load
from loaderd_server.batching.iterables import is_iterable, refuse_what_needs_indices
from loaderd_server.batching.iterate import Iterators, StderrNotes, UnitMaker
from loaderd_server.batching.keys import Keys
from loaderd_server.batching.order import draw
from loaderd_server.batching.placing import (
    Bytes,
    Placement,
    Planned,
    TooLarge,
    size_of,
    write,
)
from loaderd_server.batching.tree import plan_tree
from loaderd_server.core.settings import ErrorPolicy
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTask,
    BatchTooLarge,
    CheckTask,
    FillTask,
    IterateTask,
    MeasureDone,
    MeasureIterateTask,
    MeasureTask,
    OrderTask,
    Place,
    ProbeDone,
    ProbeTask,
    Result,
    RowFailure,
    Task,
    TaskFailed,
)
from loaderd_server.workers.plan import DatasetPlan, StreamPlan, Target

#: Slots are made a little larger than the first batch, as the next one's tail may be longer.
_HEADROOM = 1.05


class StreamMaker:
    """Makes the batches of one stream."""

    def __init__(
        self, plan: StreamPlan, dataset: Any, keys: Keys, where: str, progress: Progress
    ) -> None:
        self.plan = plan
        self._dataset = dataset
        self._keys = keys
        self._where = where
        self._progress = progress
        transforms = build_transforms(plan)
        self._fetcher = Fetcher(dataset, transforms, keys, where, progress)
        self.is_iterable = is_iterable(dataset)
        if self.is_iterable:
            refuse_what_needs_indices(plan)
        self._makes_whole = hasattr(dataset, "batch_load") and not self.is_iterable
        if self._makes_whole and transforms:
            raise ValueError(
                f"stream {plan.name} has transforms, but its dataset makes whole batches "
                f"(batch_load): transform there, or give the dataset __getitem__ instead"
            )
        self._collate = user_collate(plan, dataset)
        iterators = Iterators(dataset, keys, where, progress, StderrNotes(plan.name, where))
        self._units = UnitMaker(iterators, self._fetcher.transform, self._lay_out, where, progress)

    def close(self) -> None:
        """Ends the iterators of an iterable dataset."""
        self._units.close()

    def batch(self, task: BatchTask, place: Callable[[Place], Bytes]) -> Result:
        """Makes a batch in its place."""
        policy = self.plan.on_error
        try:
            planned = self._plan(task, policy)
            if isinstance(planned, TaskFailed):
                return planned
            fetched, made, began = planned
            if made is None:
                return BatchDone(task.task, 0, 0, b"", 0, 0, tuple(fetched.failures))
            written = write(made.root, made.placement, place(task.place))
        except TooLarge as large:
            return BatchTooLarge(task.task, large.needed_bytes)
        except BaseException as error:  # noqa: BLE001 - a user's collate; it must not end us
            return self._whole_failed(task.task, error)
        return BatchDone(
            task.task, len(fetched.rows), written.size_bytes, written.layout, written.tail_offset,
            written.tail_bytes, tuple(fetched.failures), fetched.load_s, fetched.transform_s,
            time.perf_counter() - began,
        )  # fmt: skip

    def measure(self, task: MeasureTask) -> Result:
        """Learns how large a slot must be; plans a batch and writes nothing."""
        try:
            planned = self._plan(task, ErrorPolicy.SKIP)
        except BaseException:  # noqa: BLE001 - the batch itself will tell
            return MeasureDone(task.task, 0)
        if isinstance(planned, TaskFailed) or planned[1] is None:
            return MeasureDone(task.task, 0)
        return _measured(task.task, planned[1])

    def iterate(self, task: IterateTask, place: Callable[[Place], Bytes]) -> Result:
        """Makes a batch of an iterable dataset in its place."""
        return self._units.make(task, place)

    def measure_first(self, task: MeasureIterateTask) -> Result:
        """Learns how large a slot must be for an iterable dataset's batches."""
        made = self._units.first(task)
        return MeasureDone(task.task, 0) if made is None else _measured(task.task, made)

    def probe(self, task: ProbeTask) -> Result:
        """Loads and transforms, and throws away."""
        try:
            if self._makes_whole:
                self._fetcher.whole(task, ErrorPolicy.RAISE, self._collate or default_collate)
            else:
                self._fetcher.fetch(task, ErrorPolicy.SKIP)
        except BatchedFault:
            return ProbeDone(task.task)
        return ProbeDone(task.task)

    def _plan(
        self, task: BatchTask | MeasureTask, policy: ErrorPolicy
    ) -> TaskFailed | tuple[Fetched, Planned | None, float]:
        try:
            batch, fetched = self._fetch(task, policy)
        except BatchedFault as fault:
            return self._whole_failed(task.task, fault.error)
        self._progress(NO_ROW)  # a death in the collate is no row's
        if fetched.failures and policy is not ErrorPolicy.SKIP:
            return TaskFailed(task.task, tuple(fetched.failures))
        began = time.perf_counter()
        if not fetched.rows:
            return fetched, None, began
        if self._makes_whole:
            placement = Placement()
            return fetched, Planned(plan_tree(batch, placement), placement), began
        indices = task.indices[fetched.rows].tolist()
        return fetched, self._lay_out(batch, task.address, indices), began

    def _lay_out(self, samples: list[Any], address: BatchAddress, indices: list[int]) -> Planned:
        placement = Placement()
        if self._collate is None:
            return Planned(DefaultCollate(placement, indices).plan(samples), placement)
        self._keys.seed_batch(b"collate", address)
        return Planned(plan_tree(self._collate(samples), placement), placement)

    def _fetch(self, task: SampleTask, policy: ErrorPolicy) -> tuple[Any, Fetched]:
        if self._makes_whole:
            return self._fetcher.whole(task, policy, self._collate or default_collate)
        fetched = self._fetcher.fetch(task, policy)
        return fetched.samples, fetched

    def _whole_failed(self, task: int, error: BaseException) -> TaskFailed:
        return TaskFailed(task, (RowFailure(-1, failure_of(error, -1, self._where)),))


@dataclass(eq=False)
class Maker:
    """Does the tasks of one dataset in one worker."""

    plan: DatasetPlan
    dataset: Any
    where: str
    progress: Progress
    place: Callable[[Place], Bytes]

    def __post_init__(self) -> None:
        self._streams: dict[str, StreamMaker] = {}

    def do(self, task: Task) -> Result:
        """Does a task; what user code raises becomes the result."""
        try:
            if isinstance(task, OrderTask):
                Keys(self.plan.name).seed_order(task)
                return draw(task, self._stream_plan(task.stream), self.dataset)
            if isinstance(task, CheckTask | FillTask):
                raise NotImplementedError(f"{type(task).__name__} of {task.dataset!r}")
            stream = self._stream(task.address.stream)
        except BaseException as error:  # noqa: BLE001 - a user's sampler, transform or collate
            return TaskFailed(task.task, (RowFailure(-1, failure_of(error, -1, self.where)),))
        match task:
            case BatchTask():
                return stream.batch(task, self.place)
            case MeasureTask():
                return stream.measure(task)
            case ProbeTask():
                return stream.probe(task)
            case IterateTask():
                return stream.iterate(task, self.place)
            case MeasureIterateTask():
                return stream.measure_first(task)

    def change_plan(self, plan: DatasetPlan) -> None:
        """Streams were added, changed or removed; what was built for those that stay is kept."""
        self.plan = plan
        for name, maker in tuple(self._streams.items()):
            if maker.plan not in plan.streams:
                maker.close()
                del self._streams[name]

    def _stream(self, name: str) -> StreamMaker:
        found = self._streams.get(name)
        if found is None:
            plan = self._stream_plan(name)
            keys = Keys(self.plan.name)
            found = StreamMaker(plan, self.dataset, keys, self.where, self.progress)
            self._streams[name] = found
        return found

    def _stream_plan(self, name: str) -> StreamPlan:
        return next(stream for stream in self.plan.streams if stream.name == name)


def _measured(task: int, made: Planned) -> MeasureDone:
    size = size_of(made.placement)
    return MeasureDone(task, max(1, int(size * _HEADROOM) if made.placement.values else size))


def build_transforms(plan: StreamPlan) -> list[Transform]:
    """The transforms of a stream, ready to be called with a sample and its generator."""
    return [_build(target) for target in plan.transforms]


def user_collate(plan: StreamPlan, dataset: Any) -> Callable[[Any], Any] | None:
    """The stream's own collate, else the dataset's; None for the default rules."""
    if plan.collate is not None:
        target = load(plan.collate.target)
        args = dict(plan.collate.args)
        if not args:
            made: Callable[[Any], Any] = target() if isinstance(target, type) else target
            return made
        if isinstance(target, type):
            built: Callable[[Any], Any] = target(**args)
            return built
        return lambda samples: target(samples, **args)
    return own_collate(dataset)


def own_collate(dataset: Any) -> Callable[[Any], Any] | None:
    """The collate that a dataset brings (torch's ``_get_collate_fn``), where it is not the default."""
    own = getattr(dataset, "_get_collate_fn", None)
    chosen: Callable[[Any], Any] | None = own() if own is not None else None
    return None if chosen is default_collate else chosen


def collates_by_itself(dataset: Any) -> bool:
    """Whether rows of its batches may depend on each other, for all that is known."""
    return hasattr(dataset, "batch_load") or own_collate(dataset) is not None


def _build(target: Target) -> Transform:
    """A transform: a class is built with its args; a function is called with them each time."""
    if ":" in target.target:
        named = load(target.target)
    else:
        from loaderd_server.transforms import resolve

        named = resolve(target.target)
    args = dict(target.args)
    if isinstance(named, type):
        built: Transform = named(**args)
        return built
    if not args:
        return named  # type: ignore[no-any-return]
    bound = functools.partial(named, **args)
    bound.uses_only_given_rng = getattr(named, "uses_only_given_rng", False)  # type: ignore[attr-defined]
    return bound
