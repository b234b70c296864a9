# %% [markdown]
# # Accuracies from elsewhere, latency from here
#
# Whoever has a supernet already (once-for-all's, say) has a list of sub-networks with their accuracy. As a CSV file
# with the columns `r`, `w`, `ks`, `e`, `d` and `acc` it takes the place of chanas' own supernet; `docs/formats.md`
# describes the columns. The latency table is made on this machine. The bundle holds a compiled module and no weights.
#
#     .venv/bin/python examples/bring_your_own_accuracies.py
#
# The list here is made up, since it stands for yours: accuracy grows with the logarithm of the multiply-adds.

# %%
import csv
import math
from pathlib import Path

import numpy as np

from chanas import workflows
from chanas.core import genome
from chanas.core.arch import SearchSpace
from chanas.core.effort import TableEffort
from chanas.core.units import format_latency
from chanas.files.run import RunDirectory
from chanas.search.config import SearchConfig
from chanas.workflows.searching.sources import AccuracyFile
from chanas.workflows.stages import tables

NUM_CLASSES = 10
space_file = Path(__file__).parent / "small_space.yaml"
run = RunDirectory("runs/own-accuracies")
space = SearchSpace.load(space_file)

# %% [markdown]
# ## The list
# `ks` and `e` have an entry for each place a block can be in, as once-for-all keeps them; of each stage only the first
# `d` count.

# %%
accuracies = run.root / "accuracies.csv"
accuracies.parent.mkdir(parents=True, exist_ok=True)
most = max(space.depths)
with accuracies.open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["r", "w", "ks", "e", "d", "acc"])
    for architecture in genome.decode(space, genome.sample(space, 80, np.random.default_rng(0))):
        padded = [[*stage, *[(0, 0)] * (most - len(stage))] for stage in architecture.stages]
        kernels, ratios = zip(*(choice for stage in padded for choice in stage), strict=True)
        top1 = 60 + 8 * math.log10(architecture.num_macs(space, NUM_CLASSES) / 1e5)
        depths = [len(stage) for stage in architecture.stages]
        row = [architecture.resolution, architecture.width_multiplier, list(kernels), list(ratios), depths, top1]
        rows.writerow(row)

# %% [markdown]
# ## Table and search

# %%
table = workflows.preschedule(
    run, space=space_file, num_classes=NUM_CLASSES, effort=TableEffort(trials=4, calibrate=8)
).lut
budget_s = tables.median_latency_s(table, space, NUM_CLASSES)
source = workflows.open_source(run, AccuracyFile(accuracies, space=space_file))
settings = SearchConfig(predictor="ridge", num_finalists=2)
bundle = workflows.search(run, latency_s=budget_s, source=source, config=settings)
print(f"{bundle.architecture.key}: {format_latency(bundle.measured['latency_s'])} of {format_latency(budget_s)}")
print(f"{bundle.predicted['top1']:.2%} predicted")
