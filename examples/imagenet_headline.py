# %% [markdown]
# # As accurate as the networks that people use, and faster
#
# For each accuracy asked for: the fastest sub-network of once-for-all's MobileNetV3 supernet that is predicted to have
# it, compiled for this machine, and tuned for some minutes more. Then all of them, and torchvision's networks of known
# accuracy in the runtimes that people use, are timed in turns, one process, same cores. A figure and a file of results
# come out.
#
#     .venv/bin/pip install '.[bench]'
#     .venv/bin/python examples/imagenet_headline.py --accuracies ofa_mbv3_accuracy.csv
#
# The accuracies are a CSV file as `docs/formats.md` describes it. Intel's DyNAS-T publishes some for this supernet
# (IntelLabs/DyNAS-T, notebooks/data; Apache-2.0). With `--supernet FILE`, once-for-all's checkpoint, the bundles hold
# its weights; without, they are programs without weights, which take as long.
#
# With `--dtype bfloat16`, on a processor that multiplies in it, ours compute in bfloat16, and each of the others in the
# fastest of float32, bfloat16 and int8, as far as it has them. Accuracies stay those of float32. What 8-bit networks
# lose is not counted, in their favour: they are quantised by the runtime's own tools, with random numbers.

# %%
import argparse
import dataclasses
import functools
import os
import shutil
from pathlib import Path

import numpy as np
import torch
import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

import chanas
from chanas import workflows
from chanas.bundle.codesign import CoDesign
from chanas.bundle.tuned import TunedNetwork
from chanas.core.arch import SearchSpace
from chanas.core.effort import NetworkEffort, TableEffort
from chanas.core.latency import LatencyLUT
from chanas.core.units import format_latency
from chanas.core.usage import Usage
from chanas.devices.cores import limited_to
from chanas.devices.host import load_used
from chanas.devices.timing import TimingSettings, time_in_turns
from chanas.errors import InfeasibleError, ModelError
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.files.writing import write_json
from chanas.models.sources.opening import open_model
from chanas.search.config import SearchConfig
from chanas.search.evolution.evolution import EvolutionConfig
from chanas.workflows.models.bench import clock_of
from chanas.workflows.models.chain import Model
from chanas.workflows.models.contenders import CONTENDERS, IN_OTHER_DTYPES, Subject
from chanas.workflows.searching.hand_over import versions
from chanas.workflows.searching.sources import AccuracyFile

NUM_CLASSES = 1000
# Top-1 of torchvision's weights, as its documentation has them (MobileNets: IMAGENET1K_V2, EfficientNet: V1).
PUBLISHED = {"mobilenet_v2": 0.72154, "mobilenet_v3_large": 0.75274, "efficientnet_b0": 0.77692}
# One network without a limit that matters: what comes out is no result.
QUICK_SEARCH = SearchConfig(
    num_samples=50, num_finalists=1, max_rounds=1, evolution=EvolutionConfig(population=50, generations=10)
)

parser = argparse.ArgumentParser(description="The fastest networks of wanted accuracies beside torchvision's.")
parser.add_argument("--accuracies", type=Path, required=True, help="CSV of accuracies of once-for-all's sub-networks")
parser.add_argument("--supernet", type=Path, help="once-for-all's checkpoint ofa_mbv3_d234_e346_k357_w1.0")
parser.add_argument("--table", type=Path, help="a latency table of this machine, such as luts/mbv3-amd-zen4-cpu.json")
parser.add_argument("--top1", type=float, nargs="+", default=[0.722, 0.735, 0.753, 0.765, 0.774])
parser.add_argument("--beside", nargs="*", default=list(PUBLISHED), choices=list(PUBLISHED))
parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
parser.add_argument("--minutes", type=float, default=2.0, help="of further tuning for each of our networks; 0: none")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--run", type=Path, default=Path("runs/imagenet"))
parser.add_argument("--keep", metavar="KIND", help="keep the result in examples/results, of this kind: amd-zen4")
parser.add_argument("--quick", action="store_true", help="see that all of it works: one accuracy, few rounds")
options = parser.parse_args()
if options.quick:
    options.top1, options.beside, options.rounds = [0.753], options.beside[-1:], 2

# %% [markdown]
# ## The latency table of this machine
# Accuracies that are published are of 224 pixels, and what they say of others would be a guess: the space has these
# alone. The table is made once: about four minutes for its blocks. A table that was made on the same kind of processor,
# such as those that chanas has, saves these; on another kind it is refused.

# %%
space = dataclasses.replace(SearchSpace.load("ofa-mbv3-w1.0"), name="ofa-mbv3-w1.0-r224", resolutions=(224,))
space_file = options.run / "space.yaml"
options.run.mkdir(parents=True, exist_ok=True)
space_file.write_text(yaml.safe_dump({k: v for k, v in space.to_json().items() if k != "schema"}))
short = {"float32": "f32", "bfloat16": "bf16"}[options.dtype]
run, usage = RunDirectory(options.run), Usage(threads=options.threads, dtype=short)
device = str(usage.name)
target = load_used(usage)
shipped = Path(chanas.__file__).parent / "luts" / f"mbv3-amd-zen4-{device}.json"
table = options.table
if table is None and shipped.is_file() and LatencyLUT.load(shipped).header.target.fingerprint == target.fingerprint:
    table = shipped
if table is not None and not run.lut(device).is_file():
    LatencyLUT.load(table)
    run.lut(device).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(table, run.lut(device))
if not run.lut(device).is_file():
    effort = TableEffort(trials=12, calibrate=24)
    workflows.preschedule(run, usage, space=space_file, num_classes=NUM_CLASSES, effort=effort)
if options.supernet is not None and not (run.root / "supernet").is_dir():
    workflows.import_supernet(run, "ofa", options.supernet)

# %% [markdown]
# ## The networks
# One search for each accuracy. What is compiled is kept in `front/`.

# %%
source = workflows.open_source(run, AccuracyFile(options.accuracies, space_file, NUM_CLASSES), device)
front: dict[float, CoDesign] = {}
for top1 in options.top1:
    kept = run.root / "front" / f"{device}-{top1:g}{'-quick' if options.quick else ''}"
    if not kept.is_dir():
        try:
            if options.quick:
                workflows.search(run, latency_s=1.0, source=source, usage=usage, config=QUICK_SEARCH)
            else:
                workflows.search_fastest(run, top1=top1, source=source, usage=usage)
        except InfeasibleError as reason:
            print(f"{top1:.2%}: {reason}")
            continue
        kept.parent.mkdir(exist_ok=True)
        shutil.copytree(run.bundle, kept.with_suffix(".part"))
        os.replace(kept.with_suffix(".part"), kept)
    front[top1] = CoDesign.load(kept)
    found = front[top1]
    size = f"{found.document['num_macs'] / 1e6:.0f}M MACs"
    print(f"{top1:.2%}: {found.architecture.key}, {size}, predicted {found.predicted['top1']:.2%}")
if not front:
    raise SystemExit("no network has an accuracy that was asked for")

# %% [markdown]
# ## Tuned further
# The table has a few trials of each of its operators, of which there are hundreds. What was found is tuned as one
# network, beginning with these.

# %%
tuned: dict[float, TunedNetwork] = {}
for top1 in front if options.minutes > 0 and not options.quick else ():
    kept = run.root / "front" / f"{device}-{top1:g}"
    folder = kept.with_name(f"{kept.name}-tuned")
    if not folder.is_dir():
        effort = NetworkEffort(minutes=options.minutes)
        Model.load(kept).tune(usage, effort=effort, run=run).build().save(folder)
    tuned[top1] = TunedNetwork.open(folder)

# %% [markdown]
# ## All of them in turns
# The same cores and number of threads for each. A runtime that is not installed, or does not take a network, is left
# out with a note. Beside bfloat16 each is timed in all types that it has, and the fastest one counts.

# %%
contenders = [(name, "float32") for name in CONTENDERS]
if options.dtype == "bfloat16":
    contenders += [(name, dtype) for dtype, names in IN_OTHER_DTYPES.items() for name in names]
image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
calls, notes = {}, {}
for top1, bundle in front.items():
    own = image[:, :, : bundle.architecture.resolution, : bundle.architecture.resolution]
    if top1 in tuned:
        calls["chanas", f"{top1:.1%}", options.dtype] = functools.partial(tuned[top1].run, np.ascontiguousarray(own))
    found_by = "chanas as found" if top1 in tuned else "chanas"
    calls[found_by, f"{top1:.1%}", options.dtype] = bundle.inference(np.ascontiguousarray(own))
with limited_to(options.threads), torch.inference_mode(), scratch_folder() as scratch:
    for network in options.beside:
        opened = open_model(f"torchvision:{network}")
        subject = Subject(opened.program, scratch / f"{network}.onnx", opened.random_inputs(), options.threads)
        for name, dtype in contenders:
            try:
                calls[name, network, dtype] = CONTENDERS[name](dataclasses.replace(subject, dtype=dtype))
            except ModelError as reason:
                notes[f"{name}, {network}, {dtype}"] = str(reason)
    turns = TimingSettings(options.rounds, 0.02)
    timed = time_in_turns([[(call, ())] for call in calls.values()], 3, turns, clock_of(options.threads))
summaries = dict(zip(calls, timed, strict=True))
seconds: dict[tuple[str, str], float] = {}
for (runtime, network, _), summary in summaries.items():
    seconds[runtime, network] = min(summary.seconds, seconds.get((runtime, network), summary.seconds))

# %% [markdown]
# ## The result
# Of each network of torchvision's: how many times as fast is ours that is predicted to be as accurate at least?

# %%
rows = [
    {
        "runtime": runtime,
        "network": network,
        "dtype": dtype,
        "latency_s": summary.seconds,
        "spread_s": summary.spread_s,
    }
    for (runtime, network, dtype), summary in summaries.items()
]
for row in rows:
    latency, spread = format_latency(row["latency_s"]), format_latency(row["spread_s"])
    print(f"{row['runtime']:15s} {row['network']:20s} {row['dtype']:9s} {latency} ± {spread}")
for name, note in notes.items():
    print(f"{name}: {note}")
ratios = {}
for network in options.beside:
    as_good = [t for t, bundle in front.items() if bundle.predicted["top1"] >= PUBLISHED[network]]
    if not as_good:
        print(f"{network}: no network of ours is predicted to have {PUBLISHED[network]:.2%}")
        continue
    ours = min(seconds["chanas", f"{t:.1%}"] for t in as_good)
    ratios[network] = {name: seconds[name, network] / ours for name in CONTENDERS if (name, network) in seconds}
    texts = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in ratios[network].items())
    print(f"{network} ({PUBLISHED[network]:.2%}): {format_latency(ours)}, {texts}")
result = {
    "target": target.to_json(),
    "versions": versions(),
    "accuracies": source.table.digest if source.table is not None else None,
    "threads": options.threads,
    "dtype": short,
    "minutes_of_further_tuning": options.minutes if tuned else 0,
    "ours": {
        f"{top1:.1%}": {
            "architecture": bundle.architecture.key,
            "macs": bundle.document["num_macs"],
            "predicted_top1": bundle.predicted["top1"],
            "has_weights": bundle.has_weights,
        }
        for top1, bundle in front.items()
    },
    "published_top1": PUBLISHED,
    "rows": rows,
    "ratios": ratios,
    "notes": notes,
}
write_json(run.root / f"headline-{device}.json", result)
if options.keep is not None:
    kind = options.keep if short == "f32" else f"{short}-{options.keep}"
    write_json(Path(__file__).parent / "results" / f"imagenet_headline-{kind}.json", result)

# %% [markdown]
# ## The figure

# %%
with rc_context({"svg.hashsalt": "chanas", "font.size": 9}):
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    points = sorted((1e3 * seconds["chanas", f"{t:.1%}"], 100 * b.predicted["top1"]) for t, b in front.items())
    axes.plot(*zip(*points, strict=True), "o-", label="chanas (predicted accuracy)", zorder=3)
    marks = dict(zip(CONTENDERS, "sD^v<", strict=True))
    for runtime, mark in marks.items():
        places = [(1e3 * seconds[runtime, n], 100 * PUBLISHED[n]) for n in options.beside if (runtime, n) in seconds]
        if places:
            axes.plot(*zip(*places, strict=True), mark, label=runtime, markersize=5)
    for network in options.beside:
        axes.axhline(100 * PUBLISHED[network], color="0.85", linewidth=0.8, zorder=0)
        axes.text(
            0.995, 100 * PUBLISHED[network], network, ha="right", va="bottom", transform=axes.get_yaxis_transform()
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([2, 3, 4, 5, 7, 10, 15, 20, 30, 50]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"latency of one image, ms ({options.threads} thread{'s' if options.threads > 1 else ''}, {short})")
    axes.set_ylabel("ImageNet top-1, %")
    axes.legend(frameon=False, loc=(0.66, 0.22))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(run.root / f"headline-{device}.svg", format="svg", metadata={"Date": None})
print(f"{run.root / f'headline-{device}.svg'}")
