"""The cost of int8 to random sub-networks of a trained supernet: top-1 in float32 and in int8, on images that neither
training nor calibration has seen.

    python benchmarks/int8_subnetworks.py --run RUN [--num 20] [--seed 0] [--name NAME] [--quick]

Sub-networks are drawn evenly from all sub-spaces. Each has batch-norm statistics of its own, is calibrated as the
finalists of a search in int8 are (`calibrated_blocks`, train images), and classifies all images of holdout and test in
PyTorch, in float32 and with numbers rounded as compiled networks round them: no device takes part.

Figures: points of top-1 lost, mean and worst (goal: at most 0.5), and the images that keep their class.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Figure, finish
from tqdm import tqdm

from chanas.compiler.emulation import emulated_logits
from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace
from chanas.files.run import RunDirectory
from chanas.models.calibration.blocks import calibrated_blocks
from chanas.network.folding import split_tensors
from chanas.network.static import parameters_by_name
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.workflows.searching.sources import SupernetSource

GOAL_POINTS = 0.5
SPLITS = ("holdout", "test")
Row = dict[str, Any]


def random_architectures(space: SearchSpace, num: int, seed: int) -> list[Architecture]:
    """Distinct ones, of each sub-space as many as of any other, as far as they go."""
    rng, found = np.random.default_rng(seed), dict[str, Architecture]()
    while len(found) < num:
        sub_space = space.sub_spaces[len(found) % len(space.sub_spaces)]
        (architecture,) = genome.decode(space, genome.sample(space, 1, rng, sub_space))
        found[architecture.key] = architecture
    return list(found.values())


def judged(source: SupernetSource, architecture: Architecture) -> Row:
    """One sub-network in float32 and in int8."""
    supernet: SupernetEvaluator = source.supernet
    network, size = supernet.extract(architecture), architecture.resolution
    blocks = architecture.blocks(source.task.space, source.task.num_classes)
    parameters = split_tensors(parameters_by_name(network), blocks)
    calibrated = calibrated_blocks(blocks, parameters, source.calibration_images(architecture), "int8")
    parts = [supernet.images(split, size) for split in SPLITS]
    images, labels = (np.concatenate(both) for both in zip(*parts, strict=True))
    with torch.inference_mode():
        plain = np.concatenate([network(torch.from_numpy(part)).numpy() for part in np.array_split(images, 8)])
    whole = emulated_logits(blocks, calibrated, images, "int8")
    return {
        "architecture": architecture.key,
        "num_images": len(images),
        "top1_float32": float((plain.argmax(1) == labels).mean()),
        "top1_int8": float((whole.argmax(1) == labels).mean()),
        "same_class": float((plain.argmax(1) == whole.argmax(1)).mean()),
        "squared_error": float(((whole - plain) ** 2).sum() / (plain**2).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run directory with a supernet")
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", help="what the result is called behind the space, such as the images")
    parser.add_argument("--quick", action="store_true", help="three sub-networks; nothing is written")
    options = parser.parse_args()
    source, rows = SupernetSource(RunDirectory(options.run)), list[Row]()
    space = source.task.space
    for architecture in tqdm(random_architectures(space, 3 if options.quick else options.num, options.seed)):
        row = judged(source, architecture)
        rows.append(row)
        tqdm.write(
            f"{row['architecture']:<44} {row['top1_float32']:7.2%} {row['top1_int8']:7.2%}  same class "
            f"{row['same_class']:.2%}, squared error {row['squared_error']:.3%}"
        )
    lost = [100.0 * (row["top1_float32"] - row["top1_int8"]) for row in rows]
    figures = {
        "mean_points_lost": Figure(float(np.mean(lost)), GOAL_POINTS, lower_is_better=True),
        "most_points_lost": Figure(max(lost), GOAL_POINTS, lower_is_better=True),
        "same_class": Figure(float(np.mean([row["same_class"] for row in rows]))),
    }
    extra = {"seed": options.seed, "space": space.name, "supernet": source.digest, "rows": rows}
    name = "-".join(filter(None, ("int8_subnetworks", space.name, options.name)))
    finish(name, figures, options.quick, extra)


if __name__ == "__main__":
    main()
