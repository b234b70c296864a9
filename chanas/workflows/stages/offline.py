"""Tuning records as a data set, for cost models that are taught before a tuning begins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.progress import announce
from chanas.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from chanas.core.arrays import IntArray
    from chanas.prescheduler.tuning.offline.dataset import Dataset
    from chanas.prescheduler.tuning.offline.judging import Metrics
    from chanas.prescheduler.tuning.offline.models import OfflineModel


@dataclass(frozen=True)
class Exported:
    """Lines for people about a data set, and how many records were left out, by reason."""

    lines: tuple[str, ...]
    skipped: Mapping[str, int]


def export_records(places: Sequence[Path], out: Path) -> Exported:
    """Write the valid records of runs (run directories, files of records, folders of runs) as one data set.

    Raises:
        ConfigError: `out` ends in something else than `.npz`.
        DataError: there are no records at a place, or no valid ones at all.
        CheckpointError: a file of records cannot be read.
    """
    from chanas.prescheduler.tuning.offline.dataset import save
    from chanas.prescheduler.tuning.offline.export import collect, describe_dataset, files_of_records, make_dataset

    _check_place(out, ".npz")
    found = collect(files_of_records(places))
    data = make_dataset(found)
    save(data, out)
    return Exported(tuple(describe_dataset(data)), dict(found.skipped))


def export_t4(places: Sequence[Path], out: Path, operator: str | None, target: str | None) -> Exported:
    """Write the records of one operator on one device as T4, and its schedule space as T1 beside it
    (`pointwise.json`, `pointwise.t1.json`).

    Raises:
        ConfigError: `out` ends in something else than `.json`; several operators or devices have records, or none of
            that name.
        DataError: there are no records at a place, or no valid ones of the operator.
        CheckpointError: a file of records cannot be read.
    """
    from chanas.prescheduler.tuning.offline.exchange.exporting import find_tuned, write_tuned
    from chanas.prescheduler.tuning.offline.export import files_of_records

    _check_place(out, ".json")
    tuned = find_tuned(files_of_records(places), operator, target)
    problem = out.with_suffix(".t1.json")
    write_tuned(tuned, out, problem)
    skipped = {"of points outside their spaces": tuned.num_outside} if tuned.num_outside else {}
    return Exported((*tuned.lines(), f"space in   {problem}"), skipped)


def import_records(places: Sequence[Path], out: Path, per_task: int | None = None) -> Exported:
    """Write the records of other systems (files of Ansor and TenSet, MetaSchedule's databases, T4 files, folders of all
    these) as one data set.

    Args:
        per_task: so many records of each task at most.

    Raises:
        ConfigError: `out` ends in something else than `.npz`, or `per_task` is below 1.
        DataError: a file is missing, damaged or of no known format, or no record is of use.
    """
    from chanas.prescheduler.tuning.offline.dataset import save
    from chanas.prescheduler.tuning.offline.exchange.importing import make_dataset, read_files
    from chanas.prescheduler.tuning.offline.export import describe_dataset

    _check_place(out, ".npz")
    if per_task is not None and per_task < 1:
        raise ConfigError(f"expected --per-task of at least 1, got {per_task}")
    found = read_files(places, per_task)
    data = make_dataset(found)
    save(data, out)
    return Exported((*found.lines, *describe_dataset(data)), dict(found.skipped))


def describe_records(place: Path) -> list[str]:
    """Lines about a data set, about the records of a run, or about a file of another system.

    Raises:
        DataError: there is none of these.
    """
    from chanas.prescheduler.tuning.offline.dataset import load
    from chanas.prescheduler.tuning.offline.exchange import importing
    from chanas.prescheduler.tuning.offline.export import collect, describe_dataset, files_of_records, make_dataset

    if place.is_dir() or place.suffix == ".sqlite":
        return describe_dataset(make_dataset(collect(files_of_records([place]))))
    if place.suffix == ".json" and place.is_file():
        found = importing.read_files([place])
        data = describe_dataset(importing.make_dataset(found)) if found.records else []
        return [*found.lines, *data, *(f"left out   {num} {reason}" for reason, num in found.skipped.items())]
    return describe_dataset(load(place))


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A training of a cost model.

    model, loss  see `models.Kind`, whose defaults stand for None
    split        which records it is judged by: within_task, by_task or by_target
    sample       learn from a part of the tasks, drawn by how often their FLOPs occur
    num_records  with `init`: learn from so many of the records, and be judged by the others
    init         the file of a model that goes on learning, whose model and loss it keeps
    """

    model: str | None = None
    loss: str | None = None
    split: str = "by_task"
    sample: bool = False
    init: Path | None = None
    num_records: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Taught:
    """A model with its figures on records that it did not learn from; `before` are those of the model it began as."""

    model: OfflineModel
    metrics: Metrics
    before: Metrics | None
    learned_in_s: float

    @property
    def lines(self) -> list[str]:
        """For people."""
        kind, facts = self.model.kind, self.model.facts
        found = [
            f"model      {kind.model}, {kind.loss}",
            f"learned    {facts['num_records']} records of {facts['num_tasks']} tasks in {self.learned_in_s:.1f} s",
            f"judged     {self.metrics.num_records} records of {self.metrics.num_tasks} tasks",
        ]
        figures = {"pairwise": "pairwise_accuracy", "clear": "clear_accuracy", "top-1": "top1", "top-5": "top5"}
        figures |= {"rmse": "rmse"} if kind.loss == "rmse" else {}  # scores of other losses are no labels
        for name, field in figures.items():
            value, old = getattr(self.metrics, field), getattr(self.before, field, None)
            if value is not None:
                was = "" if old is None else f" ({old:.3f} before)"
                found.append(f"{name:10} {value:.3f}{was}")
        return found


def teach(data: Path, out: Path, lesson: Lesson, progress: bool = True) -> Taught:
    """Train a cost model on a data set, judge it by records that it did not see, and write its file.

    Raises:
        ConfigError: a name is unknown, a library is not installed, options do not go together, or `out` ends in
            something else than `.safetensors`.
        DataError: the data set cannot be read, or is too small for the split.
        CheckpointError: the model to begin with cannot be read.
    """
    from chanas.prescheduler.tuning.offline.dataset import load
    from chanas.prescheduler.tuning.offline.judging import SPLITS
    from chanas.prescheduler.tuning.offline.models import Kind, load_model, save_model, train, train_further

    _check_place(out, ".safetensors")
    if lesson.split not in SPLITS:
        raise ConfigError(unknown_name("split", lesson.split, SPLITS))
    if (lesson.init is None) != (lesson.num_records is None):
        raise ConfigError("--init and --records go together: so many records of a new device for a model that is there")
    named = {name: value for name in ("model", "loss") if (value := getattr(lesson, name)) is not None}
    if lesson.init is not None and named:
        raise ConfigError(
            f"--{', --'.join(named)} cannot be changed by what a model learns further: leave out with --init"
        )
    kind = Kind(**named)
    first = None if lesson.init is None else load_model(lesson.init)
    loaded = load(data)
    learning, judging = _parts(loaded, lesson)
    if progress:
        model_name = (kind if first is None else first.kind).model
        announce(
            [
                f"plan       cost model {model_name} on {len(learning)} records of {data}, judged by {len(judging)} "
                f"others; into {out}"
            ]
        )
    started = time.monotonic()
    if first is None:
        model = train(loaded, learning, kind, lesson.seed, progress)
    else:
        model = train_further(first, loaded, learning, lesson.seed)
    learned_in_s = time.monotonic() - started
    save_model(model, out)
    before = None if first is None else _judge(first, loaded, judging)
    return Taught(model, _judge(model, loaded, judging), before, learned_in_s)


def _check_place(out: Path, suffix: str) -> None:
    """Refuse a folder, and another suffix: of the files that chanas writes it says what is in them."""
    if out.suffix != suffix or out.is_dir():
        raise ConfigError(f"expected a file that ends in {suffix}, got {'the folder ' if out.is_dir() else ''}{out}")


def _parts(data: Dataset, lesson: Lesson) -> tuple[IntArray, IntArray]:
    """Places of records to learn from, and to be judged by."""
    import numpy as np

    from chanas.prescheduler.tuning.offline.judging import sample_by_flops, split

    if lesson.num_records is not None:
        if not 2 <= lesson.num_records < len(data):
            raise ConfigError(f"expected --records from 2 to {len(data) - 1}, got {lesson.num_records}")
        order = np.random.default_rng(lesson.seed).permutation(len(data)).astype(np.int64)
        return order[: lesson.num_records], order[lesson.num_records :]
    learning, judging = split(data, lesson.split, lesson.seed)
    if lesson.sample:
        learning = learning[sample_by_flops(data.of(learning), seed=lesson.seed)]
    return learning, judging


def _judge(model: OfflineModel, data: Dataset, chosen: IntArray) -> Metrics:
    from chanas.prescheduler.tuning.offline.judging import judge

    part = data.of(chosen)
    return judge(model.scores(part.primitives), part.label, part.task)
