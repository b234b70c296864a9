"""How well cost models order schedules of operators and devices that they did not see, and what half the data is worth.

    python benchmarks/offline_models.py [--quick] --data records.npz [--run DIR ...]
        [--models attention,mlp,xgb,lgbm] [--splits within_task,by_task,by_target,each_target] [--loss rmse]
        [--further 100,300] [--seed 0]

`--data` is a file of `chanas records export`; with `--run` the records of run directories are collected first, and
written there. Each model learns from each split's training part, once from all of it and once from the half that
`sample_by_flops` leaves, and is judged by the same records (`chanas/prescheduler/tuning/offline/judging.py`). The split
`each_target` leaves out one device after the other: a use of a processor, such as two threads, bfloat16, or AVX2 alone.
There each model then learns --further so many records of the new device, of tasks drawn whole, and is judged by the
other tasks beside itself before and beside a model that has learned these alone.

What random scores reach stands beside them. With tasks that were not seen, searches are played on those with at least
48 records, among the recorded points, with the model and without. Figures: the largest loss of pairwise accuracy by
sampling (the paper: under five points), the time to train that sampling saves, and the pairwise accuracy of each model
and split. Models are trained on one thread; times are seconds of a core, which a busy machine changes little.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, finish

from chanas.compiler.backends import schedule_space
from chanas.core.arrays import IntArray
from chanas.core.target import HardwareTarget
from chanas.errors import ChanasError, DataError
from chanas.operators.keys import workload_of_key
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.gaussian_process import GaussianProcessModel
from chanas.prescheduler.tuning.cost_model.history import History
from chanas.prescheduler.tuning.cost_model.pretrained import PretrainedModel
from chanas.prescheduler.tuning.evolution import Evolution
from chanas.prescheduler.tuning.offline import dataset, export
from chanas.prescheduler.tuning.offline.dataset import Dataset
from chanas.prescheduler.tuning.offline.judging import SPLITS, Split, judge, sample_by_flops, split
from chanas.prescheduler.tuning.offline.models import MODELS, Kind, OfflineModel, train, train_further
from chanas.prescheduler.tuning.tuner import Trials

EACH_TARGET, WITHOUT = "each_target", "without"
_QUICK_RECORDS = 2000
_GOAL_LOSS = 0.05
_PLAYED_RECORDS, _MARKS = 48, (4, 8, 16)


def main() -> None:
    args = parse()
    if args.run:
        files = export.files_of_records(args.run)
        dataset.save(export.make_dataset(export.collect(files)), args.data)
    data = dataset.load(args.data)
    if args.quick:
        data = data.of(np.arange(min(_QUICK_RECORDS, len(data)), dtype=np.int64))
    rows, baselines = [], []
    for name in args.splits.split(","):
        try:
            whole = splits_of(data, name, args.seed)
        except ChanasError as error:  # a single device, say
            print(f"{name}: {error}")
            continue
        for part, parts in whole.items():
            baselines.append(by_chance(data, parts, part, args.seed))
            for model in args.models.split(","):
                kind = Kind(model=model, loss=args.loss)
                rows += compare(data, parts, kind, part, args)
    found = figures(rows)
    extra = {"seed": args.seed, "loss": args.loss, "data": describe(data), "rows": rows, "by_chance": baselines}
    finish("offline-models-further" if args.further else "offline-models", found, args.quick, extra)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, action="append")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--splits", default=",".join((*SPLITS, EACH_TARGET)))
    parser.add_argument("--loss", default="rmse")
    parser.add_argument("--further", type=lambda text: [int(num) for num in text.split(",")], default=[100, 300])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def splits_of(data: Dataset, name: str, seed: int) -> dict[str, Split]:
    """The parts of a split by its name; of `EACH_TARGET` those without one device after the other, by its use.

    Raises:
        DataError: a part would be empty.
    """
    if name != EACH_TARGET:
        return {name: split(data, name, seed)}
    if len(data.devices) < 2:
        raise DataError(f"split {name} needs records of two devices, got {len(data.devices)}")
    device = np.array([task.device for task in data.tasks], dtype=np.int64)[data.task]
    return {
        f"{WITHOUT} {use_of(data.devices[i].target)}": Split(np.flatnonzero(device != i), np.flatnonzero(device == i))
        for i in range(len(data.devices))
    }


def use_of(target: HardwareTarget) -> str:
    """Name and vectors of a use of a processor: `cpu-2t of 16 lanes`."""
    return f"{target.name} of {target.vector_lanes} lanes"


def play(data: Dataset, parts: Split, model: OfflineModel, seeds: int) -> dict[str, Any]:
    """Search among the recorded points of each judged task with many of them, with and without a trained model.

    Best seconds so far over the best of all, after so many trials: means over tasks and seeds.
    """
    found: dict[str, list[list[float]]] = {"gp": [], model.kind.model: []}
    for task, seed in itertools.product(np.unique(data.task[parts.test]), range(seeds)):
        here = np.flatnonzero(data.task == task)
        if len(here) < _PLAYED_RECORDS:
            continue
        one, device = data.tasks[task], data.devices[data.tasks[task].device].target
        whole = schedule_space(workload_of_key(one.workload), device)
        seconds = {data.points[i]: float(data.latency_s[i]) for i in here}
        space = whole.restricted(seconds)
        for name, cost_model in (
            ("gp", GaussianProcessModel(History(device))),
            (model.kind.model, PretrainedModel(History(device), model)),
        ):
            trials = Trials(space, Evolution(space, cost_model, [], seed), max(_MARKS))
            tried: list[float] = []
            while points := trials.ask(4):
                trials.tell([TuningRecord(point, seconds[point], 0.0) for point in points])
                tried += [seconds[point] for point in points]
            found[name].append([min(tried[:mark]) / min(seconds.values()) for mark in _MARKS])
    num = len(found["gp"]) // seeds
    means = {name: np.mean(rows, axis=0).tolist() for name, rows in found.items()} if num else {}
    return {"num_tasks": num, "trials": list(_MARKS), **means}


def by_chance(data: Dataset, parts: Split, name: str, seed: int) -> dict[str, Any]:
    """What random scores reach on a split's records."""
    test = data.of(parts.test)
    found = judge(np.random.default_rng(seed).random(len(test)), test.label, test.task)
    print(
        f"{name:12} by chance  pairwise {found.pairwise_accuracy:.3f}  top-1 {found.top1:.3f}  top-5 {found.top5:.3f}"
    )
    return {"split": name, **dataclasses.asdict(found)}


def go_further(data: Dataset, new: IntArray, model: OfflineModel, num: int, seed: int) -> dict[str, Any] | None:
    """What `num` records of a new device add to a model, and what a model of them alone is worth; None if that is all.

    Records are of tasks drawn whole; the other tasks judge.
    """
    tasks = np.random.default_rng(seed).permutation(np.unique(data.task[new]))
    first = np.cumsum([np.count_nonzero(data.task[new] == task) for task in tasks]) <= num
    known = np.isin(data.task[new], tasks[first])
    learned, judged = new[known], new[~known]
    if not len(judged) or not len(learned):
        return None
    test = data.of(judged)
    models = {
        "before": model,
        "after": train_further(model, data, learned, seed),
        "alone": train(data, learned, model.kind, seed, progress=False),
    }
    found = {when: judge(each.scores(test.primitives), test.label, test.task) for when, each in models.items()}
    pairs = {when: (score.pairwise_accuracy, score.clear_accuracy, score.top1) for when, score in found.items()}
    print(f"{'':12} {len(learned)} records further  {pairs}", flush=True)
    return {"num_records": len(learned), **{when: dataclasses.asdict(score) for when, score in found.items()}}


def compare(data: Dataset, parts: Split, kind: Kind, name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train on all of a split's records and on a sample of them; a row of the table each."""
    seed = options.seed
    sampled = parts.train[sample_by_flops(data.of(parts.train), seed=seed)]
    test, rows = data.of(parts.test), []
    for part, chosen in (("full", parts.train), ("sampled", sampled)):
        started = time.process_time()
        model = train(data, chosen, kind, seed, progress=False)
        seconds = time.process_time() - started
        found = judge(model.scores(test.primitives), test.label, test.task)
        row: dict[str, Any] = {"split": name, "features": "primitives", "model": kind.model, "data": part}
        row |= {"num_records": len(chosen), "train_core_s": seconds, **dataclasses.asdict(found)}
        row["num_judged"], row["num_judged_tasks"] = row.pop("num_records"), row.pop("num_tasks")
        row["num_records"] = len(chosen)
        if name == "by_task":
            row["played"] = play(data, parts, model, seeds=3)
            print(f"{'':12} played     {row['played']}")
        if name.startswith(WITHOUT) and part == "full":
            further = [go_further(data, parts.test, model, num, seed) for num in options.further]
            row["further"] = [each for each in further if each is not None]
        rows.append(row)
        print(
            f"{name:12} {kind.model:9} {part:7} {len(chosen):6} records {seconds:7.1f} s  "
            f"pairwise {found.pairwise_accuracy:.3f}  clear {found.clear_accuracy or math.nan:.3f}  "
            f"top-1 {found.top1:.3f}  top-5 {found.top5:.3f}  "
            f"rmse {found.rmse:.3f}",
            flush=True,
        )
    return rows


def figures(rows: list[dict[str, Any]]) -> dict[str, Figure]:
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    lost = [full["pairwise_accuracy"] - sampled["pairwise_accuracy"] for full, sampled in pairs]
    saved = [1.0 - sampled["train_core_s"] / full["train_core_s"] for full, sampled in pairs]
    found = {
        "largest_loss_by_sampling": Figure(max(lost, default=None), _GOAL_LOSS, lower_is_better=True),
        "median_training_time_saved": Figure(float(np.median(saved)) if saved else None),
    }
    for full, _ in pairs:
        key = f"pairwise_{full['split']}_{full['features']}_{full['model']}"
        found[key] = Figure(full["pairwise_accuracy"])
    return found


def describe(data: Dataset) -> dict[str, Any]:
    """Devices, records and tasks."""
    names = ("device", "num_threads", "dtype", "vector_lanes", "fingerprint")
    devices = [{name: getattr(device.target, name) for name in names} for device in data.devices]
    return {"num_records": len(data), "num_tasks": len(data.tasks), "devices": devices}


if __name__ == "__main__":
    main()
