# %% [markdown]
# # From handwritten digits to a compiled network, in Python
#
# The three stages of the command line, on the data set that comes with scikit-learn and on this machine's CPU, with a
# small search space and short training so that all of it takes minutes. Run it as a script
# (`.venv/bin/python examples/digits.py`), or cell by cell in an editor that knows `# %%`. Everything lands in
# `runs/example`; a second run reuses what is there.

# %%
from pathlib import Path

import numpy as np

from chanas import workflows
from chanas.bundle.benchmark import benchmark
from chanas.bundle.codesign import CoDesign
from chanas.core.effort import TableEffort
from chanas.core.units import format_latency
from chanas.files.run import RunDirectory
from chanas.files.writing import read_json
from chanas.search.config import SearchConfig
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.workflows import search_front
from chanas.workflows.stages import tables

here = Path(__file__).parent
run = RunDirectory("runs/example")

# %% [markdown]
# ## 1. Train the supernet
# Once per task. Every architecture of the space inherits its weights. Without `space` and `config` this is the preset
# `digits` on `mbv3-32`, which `make demo` trains.

# %%
checkpoint = run.supernet / "checkpoint.json"
if not checkpoint.is_file() or not read_json(checkpoint, "supernet checkpoint")["done"]:
    trained = workflows.train_supernet(
        run,
        space=here / "small_space.yaml",
        config=here / "short_training.yaml",
        resume=checkpoint.is_file(),
    )
    print(f"holdout: {trained.top1_largest:.2%} largest sub-network, {trained.top1_smallest:.2%} smallest")

# %% [markdown]
# What lies between the two: ten random sub-networks, each with batch-norm statistics of its own.

# %%
*_, spread = workflows.evaluate(run, ["random:10"])
print(f"holdout: {spread.mean:.2%} on average, {spread.lowest:.2%} to {spread.highest:.2%}")

# %% [markdown]
# ## 2. Tune every block on this device
# Once per device. Each operator is compiled and timed with a few schedules (more `trials`, faster blocks), then
# each block is timed as a whole, and the table is calibrated against whole networks.

# %%
table = workflows.preschedule(run, effort=TableEffort(trials=4, calibrate=8)).lut
print(f"{len(table.rows)} blocks; {table.calibration.describe() if table.calibration else 'not calibrated'}")

# %% [markdown]
# ## 3. Search
# A budget that half of the space meets. The winner is compiled, compared with PyTorch, measured, and tested once.

# %%
supernet = SupernetEvaluator.load(run)
budget_s = tables.median_latency_s(table, supernet.space, supernet.num_classes)
settings = SearchConfig(num_evaluations=48, initial_evaluations=24, evaluation_batch=12, refine_evaluations=8)
bundle = workflows.search(run, latency_s=budget_s, config=settings)
measured = bundle.measured
print(f"{bundle.architecture.key}: {format_latency(measured['latency_s'])} of {format_latency(budget_s)}")
print(f"{measured['top1_test']:.2%} on test")

# %% [markdown]
# Without a budget: what latency buys, measured at four points of the front. Evaluations made above are reused.

# %%
for point in search_front(run, num_points=4, config=settings):
    if point.proof.error is None:
        print(f"{format_latency(point.measured_latency_s):>10s}  {point.top1:.2%}  {point.architecture.key}")

# %% [markdown]
# ## 4. Use it
# A bundle needs neither PyTorch nor the run directory. `predict` takes preprocessed images, float32[N, 3, R, R];
# `classify` takes image files.

# %%
bundle = CoDesign.load(run.bundle)
images, labels = supernet.images("test", bundle.architecture.resolution)
classes = np.argmax(bundle.predict(images[:10]), axis=1)
print(f"predicted {classes.tolist()}, labelled {labels[:10].tolist()}")

# %% [markdown]
# The compiled module beside PyTorch on the same weights, image and cores:

# %%
for row in benchmark(bundle, with_compile=False):
    print(f"{row.name:16s} {format_latency(row.median_s or 0.0):>10s}")

# %% [markdown]
# ## 5. See why
# One HTML page: the front, the budget, the architecture, where its time goes, and what it all cost.

# %%
print(workflows.report(run))
