"""Do inherited weights rank rightly? Sub-networks in a supernet against the same networks trained from scratch.

24 random architectures of a reduced `mbv3-32` are trained from scratch, several seeds each, by plain cross-entropy with
label smoothing on the batches that the supernet of the same seed and "0 fair" takes (train and gap split together).
Their mean test accuracy over seeds is the truth. Against it stands the test accuracy of the sub-networks of supernets
that were trained without the gap term and with λ = 0.45, with recalibrated BN statistics and with the shared ones:
Kendall's τ-b for each supernet, then mean and spread over supernets.

What τ can be reached is limited by the noise of the truth. `halves of the truth` is τ between the means of two halves
of the seeds, over all ways to halve them; `perfect ranker` estimates, for normal noise, what a ranker that knew the
true means would reach against the whole truth. For comparison, a network of one more seed from scratch ranks as `one
training`, and `MACs` and `parameters` rank without any training. Resolution alone ranks a good deal, so τ is also given
within resolutions (the mean over them); where halves and perfect ranker are near zero there, the data set does not tell
the architectures of one resolution apart, and no ranker can be judged by it.

Supernets are those of `gap_objective.py`, which are trained here if they are not there. Networks from scratch take as
many steps at the same learning rates as supernets. Finished ones are kept in `--work`.

    python benchmarks/ranking.py [--quick] [--seeds 8] [--static-seeds 4] [--work DIR] [--supernets DIR]
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from common import Figure, finish
from supernet_runs import (
    FAIR,
    WEIGHTED,
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
from torch.nn import functional as F

from chanas.core.arch import Architecture
from chanas.core.arrays import FloatArray
from chanas.core.statistics import kendall_tau, spearman
from chanas.files.writing import read_json, write_json
from chanas.network.static import StaticNetwork
from chanas.supernet.data.images import ImageData, load_data
from chanas.supernet.data.loader import training_batches
from chanas.supernet.training.evaluate import EvaluationImages
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.step import apply_gradients, make_optimizer

NUM_ARCHITECTURES = 24
CONDITIONS = (FAIR, WEIGHTED[0.45])
NUM_CLASSES = 10
FIGURES = {
    "tau_fair_recalibrated": "0 fair, recalibrated",
    "tau_fair_shared": "0 fair, shared",
    "tau_lambda_0.45_recalibrated": "0.45, recalibrated",
    "tau_lambda_0.45_shared": "0.45, shared",
    "tau_one_training": "one training",
    "tau_macs": "MACs",
    "tau_between_halves": "halves of the truth",
    "tau_perfect_ranker": "perfect ranker",
}
_STATIC_STREAM = 32
Correlation = Callable[[FloatArray, FloatArray], float]


# ---- from scratch -------------------------------------------------------------------------------------------------
def learning_rate(step: int, setting: Setting) -> float:
    """Linear warmup, then a cosine to zero, as for supernets."""
    peak = setting.base_lr
    if step < setting.warmup_steps:
        return peak * (step + 1) / setting.warmup_steps
    return peak * 0.5 * (1 + math.cos(math.pi * (step - setting.warmup_steps) / (setting.steps - setting.warmup_steps)))


def train_static(
    architecture: Architecture, number: int, setting: Setting, config: TrainConfig, data: ImageData
) -> StaticNetwork:
    """A network of fresh weights, trained on the batches that a supernet of `config` would see; in eval mode."""
    device = torch.device(config.device)
    seed = int(np.random.default_rng([config.seed, _STATIC_STREAM, number]).integers(2**31))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = StaticNetwork(architecture.blocks(setting.space, data.num_classes)).to(device).train()
    optimizer = make_optimizer(network, config.optimizer)
    steps = ((step, architecture.resolution) for step in range(setting.steps))
    for step, batch in enumerate(training_batches(data, config.loader, steps)):
        optimizer.zero_grad(set_to_none=True)
        logits = network(batch.images_nchw.to(device).contiguous(memory_format=torch.channels_last))
        smoothing = config.objective.label_smoothing
        loss = F.cross_entropy(logits, batch.labels.to(device), label_smoothing=smoothing)
        loss.backward()  # type: ignore[no-untyped-call]
        apply_gradients(network, optimizer, learning_rate(step, setting), config.optimizer.clip_norm)
    return network.eval().requires_grad_(False)


def static_accuracies(
    folder: Path, setting: Setting, config: TrainConfig, architectures: Sequence[Architecture]
) -> list[dict[str, float]]:
    """Top-1 on train, holdout and test of every architecture from scratch, for the seed of `config`."""
    torch.set_num_threads(config.num_threads or 1)
    data = load_data(config.data, config.seed)
    images = EvaluationImages(data, torch.device(config.device))
    rows = []
    for number, architecture in enumerate(architectures):
        path = folder / f"{architecture.key}.json"

        def measure(number: int = number, architecture: Architecture = architecture) -> dict[str, float]:
            network = train_static(architecture, number, setting, config, data)
            limit, resolution = setting.max_images, architecture.resolution
            return {s: judge(network, resolution, images, s, limit)[0] for s in ("train", "holdout", "test")}

        rows.append(stored(path, {"config": config.to_json(), "number": number}, measure))
    return rows


def stored(path: Path, made_with: dict[str, Any], make: Callable[[], Any]) -> Any:
    """What `make` gives, from `path` if it was kept there by an earlier call."""
    if path.exists():
        content = read_json(path, "benchmark result")
        if same_terms(content["made_with"]) != made_with:
            raise SystemExit(f"{path} was made with other settings; delete its folder, or name another --work")
        return content["result"]
    result = make()
    write_json(path, {"made_with": made_with, "result": result})
    return result


# ---- inherited ----------------------------------------------------------------------------------------------------
def inherited_accuracies(
    folder: Path, setting: Setting, config: TrainConfig, architectures: Sequence[Architecture]
) -> dict[str, list[float]]:
    """Test top-1 of every architecture in one supernet, with recalibrated and with shared BN statistics."""
    trainer = trained(folder, setting, config)
    out: dict[str, list[float]] = {}
    for name, recalibrated in (("recalibrated", True), ("shared", False)):
        networks = ((a.resolution, inherited(trainer, a, recalibrated)) for a in architectures)
        out[name] = [judge(n, r, trainer.images, "test", setting.max_images)[0] for r, n in networks]
    return out


# ---- figures ------------------------------------------------------------------------------------------------------
def tau(left: FloatArray, right: FloatArray) -> float:
    """Kendall's τ-b; 0 where one side has no order at all."""
    return kendall_tau(left, right) or 0.0


def pearson(left: FloatArray, right: FloatArray) -> float:
    """0 where one side has no spread."""
    return float(np.corrcoef(left, right)[0, 1]) if left.std() > 0 and right.std() > 0 else 0.0


def rho(left: FloatArray, right: FloatArray) -> float:
    """Spearman's ρ; 0 where one side has no order at all."""
    return spearman(left, right) or 0.0


def within(groups: npt.NDArray[np.int64], correlation: Correlation) -> Correlation:
    """The correlation inside each group, averaged over groups."""

    def averaged(left: FloatArray, right: FloatArray) -> float:
        return float(np.mean([correlation(left[groups == g], right[groups == g]) for g in np.unique(groups)]))

    return averaged


def between_halves(truth: FloatArray, correlation: Correlation) -> float:
    """Mean correlation between the means of two halves of the seeds of float[seeds, N], over all ways to halve them."""
    seeds = range(len(truth))
    halves = [h for h in itertools.combinations(seeds, len(truth) // 2) if 0 in h or len(truth) % 2]
    rest = [[s for s in seeds if s not in half] for half in halves]
    return float(
        np.mean([correlation(truth[list(h)].mean(0), truth[r].mean(0)) for h, r in zip(halves, rest, strict=True)])
    )


def variances(truth: FloatArray) -> tuple[float, float]:
    """Of float[seeds, N]: the variance of the means over seeds, and that of one seed's noise about them.

    What a seed adds to all architectures alike ranks nothing and is left out.
    """
    centred = truth - truth.mean(1, keepdims=True)
    means = centred.mean(0)
    noise = ((centred - means) ** 2).sum() / ((len(truth) - 1) * (truth.shape[1] - 1))
    return float(means.var(ddof=1)), float(noise)


def perfect_correlation(truth: FloatArray) -> float:
    """Estimated Pearson correlation of the means of float[seeds, N] with what they would be over endless seeds."""
    whole, noise = variances(truth)
    return math.sqrt(max(0.0, 1.0 - noise / len(truth) / whole)) if whole > 0 else 0.0


def perfect_ranker(truth: FloatArray, groups: npt.NDArray[np.int64]) -> dict[str, float]:
    """Each correlation that a ranker by the true means would reach, by the normal distribution's formulas."""
    r = perfect_correlation(truth)
    inside = [2 / math.pi * math.asin(perfect_correlation(truth[:, groups == g])) for g in np.unique(groups)]
    return {
        "Kendall": 2 / math.pi * math.asin(r),
        "Kendall, one resolution": float(np.mean(inside)),
        "Spearman": 6 / math.pi * math.asin(r / 2),
        "Pearson": r,
    }


def one_training(truth: FloatArray, correlation: Correlation) -> list[float]:
    """Of each seed of float[seeds, N] with the mean of the others."""
    return [correlation(truth[s], np.delete(truth, s, axis=0).mean(0)) for s in range(len(truth))]


def summarise(
    correlations: Mapping[str, Correlation], truth: FloatArray, found: Mapping[str, FloatArray], costs: FloatArray
) -> dict[str, dict[str, dict[str, Any]]]:
    """By ranker and kind of correlation: mean, deviation and confidence interval over its supernets.

    Args:
        correlations: by name.
        truth: float[static seeds, N] accuracies from scratch.
        found: by name of a way to inherit: float[supernets, N].
        costs: float[2, N], MACs and parameters.
    """
    mean, out = truth.mean(0), {}
    for ranker, accuracies in found.items():
        out[ranker] = {
            name: spread([f(row, mean) for row in accuracies]) | {"of_mean_supernet": f(accuracies.mean(0), mean)}
            for name, f in correlations.items()
        }
    for name, f in correlations.items():  # its values share trainings, so they have no interval of their own
        each = one_training(truth, f)
        out.setdefault("one training", {})[name] = {**spread([float(np.mean(each))]), "each": each}
    for ranker, cost in zip(("MACs", "parameters"), costs, strict=True):
        out[ranker] = {name: spread([f(cost, mean)]) for name, f in correlations.items()}
    out["halves of the truth"] = {name: spread([between_halves(truth, f)]) for name, f in correlations.items()}
    return out


def spread(each: Sequence[float]) -> dict[str, Any]:
    mean, deviation = mean_and_deviation(each)
    _, low, high = confidence(each) if len(each) > 1 else (mean, math.nan, math.nan)
    return {"mean": mean, "deviation": deviation, "ci95": [low, high], "each": list(each)}


def show(found: Mapping[str, Mapping[str, Mapping[str, Any]]], names: Sequence[str]) -> None:
    print(f"\n{'ranked by':<26}" + "".join(f"{name:>26}" for name in names))
    for ranker, entries in found.items():
        cells = []
        for name in names:
            e = entries[name]
            interval = f" [{e['ci95'][0]:.3f}, {e['ci95'][1]:.3f}]" if math.isfinite(e["ci95"][0]) else ""
            cells.append(f"{e['mean']:.3f}{interval}")
        print(f"{ranker:<26}" + "".join(f"{cell:>26}" for cell in cells))


def differences(found: Mapping[str, Mapping[str, Mapping[str, Any]]], name: str) -> dict[str, dict[str, Any]]:
    """What recalibration and the gap term do to a correlation, paired by supernet seed."""
    fair, weighted = (c.name for c in CONDITIONS)
    pairs = {
        f"recalibration, λ {fair}": (f"{fair}, recalibrated", f"{fair}, shared"),
        f"recalibration, λ {weighted}": (f"{weighted}, recalibrated", f"{weighted}, shared"),
        "gap term, recalibrated": (f"{weighted}, recalibrated", f"{fair}, recalibrated"),
        "gap term, shared": (f"{weighted}, shared", f"{fair}, shared"),
    }
    out = {}
    for what, (better, worse) in pairs.items():
        each = [a - b for a, b in zip(found[better][name]["each"], found[worse][name]["each"], strict=True)]
        mean, low, high = confidence(each)
        out[what] = {"mean": mean, "ci95": [low, high]}
    return out


def accuracy_range(accuracies: FloatArray) -> dict[str, float]:
    """In points, of float[N]."""
    low, mean, high = (100 * float(v) for v in (accuracies.min(), accuracies.mean(), accuracies.max()))
    return {"lowest": low, "mean": mean, "highest": high}


# ---- the benchmark ------------------------------------------------------------------------------------------------
def measure_static(
    options: argparse.Namespace, setting: Setting, work: Path, architectures: Sequence[Architecture]
) -> dict[str, FloatArray]:
    """Top-1 by split, float[static seeds, N], from scratch."""
    out: dict[str, list[list[float]]] = {"train": [], "holdout": [], "test": []}
    for seed in range(options.first_seed, options.first_seed + (2 if options.quick else options.static_seeds)):
        start = time.perf_counter()
        config = train_config(setting, FAIR, seed, options.device, options.threads)
        rows = static_accuracies(work / f"static-seed-{seed}", setting, config, architectures)
        for split, seeds in out.items():
            seeds.append([row[split] for row in rows])
        lowest, highest = (100 * f(out["test"][-1]) for f in (min, max))
        seconds = time.perf_counter() - start
        print(f"from scratch, seed {seed}: {lowest:.2f} … {highest:.2f} on test, {seconds:.0f} s", flush=True)
    return {split: np.array(seeds) for split, seeds in out.items()}


def measure_inherited(
    options: argparse.Namespace, setting: Setting, work: Path, supernets: Path, architectures: Sequence[Architecture]
) -> dict[str, FloatArray]:
    """Test top-1 float[supernets, N] by condition and BN statistics."""
    out: dict[str, list[list[float]]] = {}
    for seed in range(options.first_seed, options.first_seed + (2 if options.quick else options.seeds)):
        for condition in CONDITIONS:
            config = train_config(setting, condition, seed, options.device, options.threads)
            folder = supernet_folder(supernets, condition, seed)
            made_with = {"config": config.to_json(), "architectures": [a.key for a in architectures]}
            path = work / f"{folder.name}.json"

            def measure(folder: Path = folder, config: TrainConfig = config) -> dict[str, list[float]]:
                return inherited_accuracies(folder, setting, config, architectures)

            result = stored(path, made_with, measure)
            for name, accuracies in result.items():
                out.setdefault(f"{condition.name}, {name}", []).append(accuracies)
            cells = (f"{name} {100 * min(a):.2f} … {100 * max(a):.2f}" for name, a in result.items())
            print(f"inherited, seed {seed}, λ {condition.name}: " + ", ".join(cells), flush=True)
    return {name: np.array(seeds) for name, seeds in out.items()}


def report(
    setting: Setting,
    architectures: Sequence[Architecture],
    static: Mapping[str, FloatArray],
    found: Mapping[str, FloatArray],
) -> dict[str, Any]:
    """Print the tables, and return what they are made of."""
    truth = static["test"]
    costs = np.array([[a.num_macs(setting.space, NUM_CLASSES) for a in architectures]] * 2, dtype=np.float64)
    costs[1] = [a.num_params(setting.space, NUM_CLASSES) for a in architectures]
    resolutions = np.array([a.resolution for a in architectures])
    correlations: dict[str, Correlation] = {
        "Kendall": tau,
        "Kendall, one resolution": within(resolutions, tau),
        "Spearman": rho,
        "Pearson": pearson,
    }
    summary = summarise(correlations, truth, found, costs)
    perfect = perfect_ranker(truth, resolutions)
    summary["perfect ranker"] = {name: spread([value]) for name, value in perfect.items()}
    ranges = {"from scratch": accuracy_range(truth.mean(0)), **{k: accuracy_range(v.mean(0)) for k, v in found.items()}}
    print(f"\ntest top-1 in points over {len(architectures)} architectures, of means over seeds")
    for name, row in ranges.items():
        print(f"{name:<26}lowest {row['lowest']:.2f}, mean {row['mean']:.2f}, highest {row['highest']:.2f}")
    signal, noise = (100 * math.sqrt(v) for v in variances(truth))
    train = 100 * float(static["train"].mean())
    by_resolution = {str(r): 100 * float(truth[:, resolutions == r].mean()) for r in np.unique(resolutions)}
    print(f"from scratch, train images: {train:.2f}; on test the means of architectures deviate by {signal:.2f}, one")
    print(f"training's noise is {noise:.2f}; mean by resolution: ", end="")
    print(", ".join(f"{top1:.2f} at {resolution}" for resolution, top1 in by_resolution.items()))
    show(summary, list(correlations))
    changes = {name: differences(summary, name) for name in ("Kendall", "Kendall, one resolution")}
    for name, change in changes.items():
        print(f"\nchange of {name}, paired by supernet, with its 95 % confidence interval")
        for what, d in change.items():
            print(f"{what:<30}{d['mean']:+.3f} [{d['ci95'][0]:+.3f}, {d['ci95'][1]:+.3f}]")
    rows = [
        {
            "architecture": a.key,
            "macs": int(costs[0, i]),
            "params": int(costs[1, i]),
            "from_scratch": truth[:, i].tolist(),
            **{name: accuracies[:, i].tolist() for name, accuracies in found.items()},
        }
        for i, a in enumerate(architectures)
    ]
    return {
        "correlations": summary,
        "changes": changes,
        "test_top1_points": ranges,
        "from_scratch_points": {
            "train_top1": train,
            "test_top1_by_resolution": by_resolution,
            "deviation_of_means": signal,
            "deviation_of_one_training": noise,
        },
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, num_seeds=8)
    parser.add_argument("--static-seeds", type=int, default=4, help="trainings from scratch of each architecture")
    parser.add_argument("--work", type=Path, help="where finished networks are kept (runs/benchmarks/ranking/DATASET)")
    parser.add_argument("--supernets", type=Path, help="the --work of gap_objective.py")
    options = parser.parse_args(arguments)
    if min(options.seeds, options.static_seeds) < 2:
        raise SystemExit("at least two supernets and two trainings from scratch are needed")
    setting = setting_of(options)
    architectures = random_architectures(setting.space, 6 if options.quick else NUM_ARCHITECTURES)
    with tempfile.TemporaryDirectory() as temporary:
        work = work_folder(options.work, "ranking", options.dataset)
        supernets = work_folder(options.supernets, "gap_objective", options.dataset)
        if options.quick:
            work = supernets = Path(temporary)
        static = measure_static(options, setting, work, architectures)
        found = measure_inherited(options, setting, work, supernets, architectures)

    extra = report(setting, architectures, static, found)
    print("\nKendall's τ-b with accuracies from scratch, mean over supernets:")
    figures = {name: Figure(extra["correlations"][ranker]["Kendall"]["mean"]) for name, ranker in FIGURES.items()}
    extra |= {
        "dataset": options.dataset,
        "seeds": list(range(options.first_seed, options.first_seed + options.seeds)),
        "static_seeds": list(range(options.first_seed, options.first_seed + options.static_seeds)),
        "setting": setting.to_json() | {"data": {k: v for k, v in setting.data.items() if k != "root"}},
    }
    finish(results_name("ranking", options), figures, options.quick, extra, results_kind(options))


if __name__ == "__main__":
    main()
