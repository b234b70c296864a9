"""Does the generalisation-gap objective help? Eq. 3, L_train + λ·|L_val − L_train|, against training without the term.

Supernets of a reduced `mbv3-32` are trained by the sandwich rule for equally many steps at equal learning rates:

    0 fair    λ = 0, and the gap images are trained on: as many images and as many in a step as with the term
    0 unfair  λ = 0, and the gap images are left unused: the term's train images at every step, and nothing else
    λ hinge   λ · max(0, L_val − L_train) in place of λ · |L_val − L_train|
    λ > 0     the gap images are what |L_val − L_train| is measured on

A seed gives the same splits, initial weights and sampled sub-networks in every condition, so differences are paired
by seed. Measured are the same 50 random sub-networks in every run, with inherited weights and recalibrated BN
statistics. A generalisation gap is the cross-entropy on holdout images, which no condition learns from, minus the one
on train images. Splits, steps and learning rate of the digits were chosen on another seed, by "0 fair" alone: hard
enough to be below 98.5 %, long enough for a training loss near its floor.

The term's gradient is λ·(∇L_val − ∇L_train) where L_val is the larger one: it then only weighs gap images against train
images. Where L_val is the smaller one it is the opposite: the step unlearns gap images. How often that happens in a
step's few images, although the gap of the whole splits is positive, is printed as well.

Finished runs are kept in `--work`, and a killed benchmark continues from there.

    python benchmarks/gap_objective.py [--quick] [--seeds 8] [--work DIR] [--dataset cifar10 --root DIR --device cuda]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Figure, finish
from supernet_runs import (
    FAIR,
    HINGED,
    UNFAIR,
    WEIGHTED,
    Condition,
    Setting,
    add_options,
    confidence,
    inherited,
    judge,
    mean_and_deviation,
    random_architectures,
    results_kind,
    results_name,
    same_terms,
    setting_of,
    supernet_folder,
    train_config,
    trained,
    work_folder,
)

from chanas.core.arch import Architecture
from chanas.files.run import RunDirectory
from chanas.files.writing import read_json, write_json
from chanas.supernet.training.metrics import read_metrics
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import Trainer

GOAL_POINTS = 0.5  # what the paper gains by the term
CONDITIONS = (FAIR, UNFAIR, *WEIGHTED.values(), *HINGED.values())
NUM_ARCHITECTURES = 50
MEASURES = {  # name: (heading, factor of what is printed)
    "mean_top1": ("mean of random", 100.0),
    "best_top1": ("best by holdout", 100.0),
    "largest_top1": ("largest", 100.0),
    "smallest_top1": ("smallest", 100.0),
    "train_loss": ("train loss", 1.0),
    "generalization_gap": ("gen. gap", 1.0),
}
WIDTH = 28
Row = dict[str, Any]


def measure(trainer: Trainer, architecture: Architecture, max_images: int | None) -> dict[str, float]:
    """Top-1 and cross-entropy of a recalibrated sub-network on every split."""
    network = inherited(trainer, architecture)
    out: dict[str, float] = {}
    for split in ("train", "gap", "holdout", "test"):
        top1, loss = judge(network, architecture.resolution, trainer.images, split, max_images)
        out |= {f"{split}_top1": top1, f"{split}_loss": loss}
    return out


def summarise(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Over random sub-networks: means, and the test top-1 of the best by holdout (the mean of those that tie)."""
    mean = {name: float(np.mean([m[name] for m in measured])) for name in measured[0]}
    best = max(m["holdout_top1"] for m in measured)
    return {
        "mean_top1": mean["test_top1"],
        "best_top1": float(np.mean([m["test_top1"] for m in measured if m["holdout_top1"] == best])),
        "train_loss": mean["train_loss"],
        "gap_loss": mean["gap_loss"],
        "holdout_loss": mean["holdout_loss"],
        "test_loss": mean["test_loss"],
        "generalization_gap": mean["holdout_loss"] - mean["train_loss"],
        "train_top1": mean["train_top1"],
        "holdout_top1": mean["holdout_top1"],
    }


def run_one(folder: Path, setting: Setting, condition: Condition, config: TrainConfig, num: int) -> Row:
    """One run: trained and measured, or read back when `folder` holds it."""
    path, made_with = folder / "row.json", {"config": config.to_json(), "architectures": num}
    if path.exists():
        stored = read_json(path, "benchmark run")
        if same_terms(stored["made_with"]) != made_with:
            raise SystemExit(f"{path} was made with other settings; delete {folder}, or name another --work")
        row: Row = stored["row"]
        return row
    start = time.perf_counter()
    trainer = trained(folder, setting, config)
    trained_s = time.perf_counter() - start
    measured = [measure(trainer, a, setting.max_images) for a in random_architectures(setting.space, num)]
    fixed = {
        f"{name}_top1": measure(trainer, architecture, setting.max_images)["test_top1"]
        for name, architecture in (("largest", setting.space.largest), ("smallest", setting.space.smallest))
    }
    row = {"condition": condition.name, "seed": config.seed, **summarise(measured), **fixed}
    row |= {
        "rollbacks": trainer.state.progress.num_rollbacks,
        "train_s": trained_s,
        "wall_s": time.perf_counter() - start,
    }
    row["splits"] = {name: len(indices) for name, indices in trainer.data.splits.indices.items()}
    write_json(path, {"made_with": made_with, "row": row, "sub_networks": measured})
    return row


def positive_share(folder: Path) -> float:
    """In how many of the logged steps L_val was the larger one, as the mean over the step's sub-networks."""
    gaps: list[float] = [
        row["generalization_gap"] for row in read_metrics(RunDirectory(folder)) if row["kind"] == "training"
    ]
    return sum(gap > 0 for gap in gaps) / len(gaps)


def values(rows: Sequence[Row], condition: str, name: str) -> list[float]:
    """A measure over the seeds of a condition, in order of seed."""
    return [float(r[name]) for r in sorted(rows, key=lambda r: int(r["seed"])) if r["condition"] == condition]


def statistics(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Of each condition and measure: mean, deviation over seeds, and paired differences; accuracies in points."""
    out: dict[str, dict[str, Any]] = {}
    for condition in CONDITIONS:
        out[condition.name] = {}
        for name, (_, factor) in MEASURES.items():
            own = [factor * v for v in values(rows, condition.name, name)]
            mean, deviation = mean_and_deviation(own)
            entry: dict[str, Any] = {"mean": mean, "deviation": deviation}
            for opponent in (FAIR, UNFAIR):
                if opponent == condition:
                    continue
                other = [factor * v for v in values(rows, opponent.name, name)]
                gain, low, high = confidence([a - b for a, b in zip(own, other, strict=True)])
                entry[f"minus {opponent.name}"] = {"mean": gain, "ci95": [low, high]}
            out[condition.name][name] = entry
    return out


def show(found: Mapping[str, Mapping[str, Any]], num_seeds: int) -> None:
    """The tables: means over seeds, then paired differences to either opponent."""
    headings = "".join(f"{heading:>18}" for heading, _ in MEASURES.values())
    print(f"\nmean ± standard deviation over {num_seeds} seeds; accuracies are on test, in points\n{'λ':<10}{headings}")
    for name, entries in found.items():
        cells = (f"{e['mean']:.3f} ± {e['deviation']:.3f}" for e in entries.values())
        print(f"{name:<10}" + "".join(f"{cell:>18}" for cell in cells))
    for opponent in (FAIR, UNFAIR):
        print(f"\npaired difference to '{opponent.name}' with its 95 % confidence interval (Student's t)")
        print(f"{'λ':<10}" + "".join(f"{heading:>{WIDTH}}" for heading, _ in MEASURES.values()))
        for name, entries in found.items():
            if name != opponent.name:
                pairs = (e[f"minus {opponent.name}"] for e in entries.values())
                cells = (f"{p['mean']:+.3f} [{p['ci95'][0]:+.3f}, {p['ci95'][1]:+.3f}]" for p in pairs)
                print(f"{name:<10}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))


def figures(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """Gains in mean test top-1, and for λ = 0.45 in that of the best by holdout."""
    out = {}
    for condition in (*WEIGHTED.values(), *HINGED.values()):
        for opponent in ("fair", "unfair"):
            gain = found[condition.name]["mean_top1"][f"minus 0 {opponent}"]["mean"]
            goal = GOAL_POINTS if (condition, opponent) == (WEIGHTED[0.45], "fair") else None
            out[f"gain_over_{opponent}_points_lambda_{condition.name.replace(' ', '_')}"] = Figure(gain, goal)
    best = found[WEIGHTED[0.45].name]["best_top1"]["minus 0 fair"]["mean"]
    return {**out, "gain_of_best_over_fair_points_lambda_0.45": Figure(best)}


def run_all(options: argparse.Namespace, setting: Setting, work: Path) -> list[Row]:
    """Every condition of every seed, seed by seed."""
    num = 4 if options.quick else NUM_ARCHITECTURES
    rows = []
    print(f"{'seed':>4}  {'λ':<10}" + "".join(f"{heading:>17}" for heading, _ in MEASURES.values()) + f"{'s':>7}")
    for seed in range(options.first_seed, options.first_seed + (2 if options.quick else options.seeds)):
        for condition in CONDITIONS:
            config = train_config(setting, condition, seed, options.device, options.threads)
            folder = supernet_folder(work, condition, seed)
            row = run_one(folder, setting, condition, config, num)
            if condition.gap_weight:
                row["positive_share"] = positive_share(folder)
            rows.append(row)
            cells = "".join(f"{factor * row[name]:>17.3f}" for name, (_, factor) in MEASURES.items())
            print(f"{seed:>4}  {condition.name:<10}{cells}{row['wall_s']:>7.1f}", flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, num_seeds=8)
    parser.add_argument(
        "--work", type=Path, help="where finished runs are kept (runs/benchmarks/gap_objective/DATASET)"
    )
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        raise SystemExit("a confidence interval needs at least two seeds")
    setting = setting_of(options)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary) if options.quick else work_folder(options.work, "gap_objective", options.dataset)
        rows = run_all(options, setting, work)
    found = statistics(rows)
    show(found, len(rows) // len(CONDITIONS))
    shares = {c.name: mean_and_deviation(values(rows, c.name, "positive_share"))[0] for c in WEIGHTED.values()}
    print("\nshare of steps whose L_val was above their L_train: ", end="")
    print(", ".join(f"{share:.2f} at λ = {name}" for name, share in shares.items()))
    print(f"\ngain in mean test top-1, in points; goal {GOAL_POINTS} for λ = 0.45, which is what the paper reports:")
    extra = {
        "dataset": options.dataset,
        "seeds": sorted({row["seed"] for row in rows}),
        "setting": setting.to_json() | {"data": {k: v for k, v in setting.data.items() if k != "root"}},
        "architectures": NUM_ARCHITECTURES,
        "statistics": found,
        "share_of_steps_with_larger_val_loss": shares,
        "rows": rows,
        "unit": "accuracies of `statistics` in points, of `rows` in [0, 1]; losses in nats, without label smoothing",
    }
    finish(results_name("gap_objective", options), figures(found), options.quick, extra, results_kind(options))


if __name__ == "__main__":
    main()
