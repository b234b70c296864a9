"""Speed and accuracy of a detector by the number of trials that it was tuned with, as `chanas tune` does it.

    python examples/detector/table.py --model runs/detector/detector.pt2 --data runs/detector/val [--trials 200 2000]

Trials are those of the whole network, shared out over its operators; each row goes on from the one before. Frames per
second are of the compiled module alone on one thread, the first row is TVM without schedules. Mean average precision is
that of each compiled module itself. The table is printed, and written to `table.json` in the folder `--out`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from evaluate import evaluate

from chanas.core.usage import Usage
from chanas.devices.host import load_used
from chanas.files.scratch import scratch_folder
from chanas.files.writing import write_json
from chanas.models.lowering import lower
from chanas.workflows.models.chain import LoadedModel, Model
from chanas.workflows.models.untuned import untuned_network

Row = dict[str, float | int | str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="detector.onnx or detector.pt2")
    parser.add_argument("--data", type=Path, required=True, help="a folder that shapes.py or train.py has written")
    parser.add_argument("--trials", type=int, nargs="+", default=[200, 2000, 10000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--num-images", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("tuned"))
    options = parser.parse_args()
    loaded, usage = Model.load(options.model), Usage("cpu", options.threads)
    rows = [untuned_row(loaded, usage)]
    print_row(rows[0], rows[0])
    num_operators = len(lower(loaded.graph, load_used(usage)).workloads())
    for trials in sorted(options.trials):
        row = tuned_row(options, loaded, usage, trials, num_operators)
        rows.append(row)
        print_row(row, rows[0])
        write_json(options.out / "table.json", rows)


def untuned_row(loaded: LoadedModel, usage: Usage) -> Row:
    """TVM's own route without schedules; its accuracy is the framework's, whose outputs it has."""
    with scratch_folder() as scratch:
        _, seconds = untuned_network(loaded.opened, load_used(usage), scratch)
    return {"trials": 0, "seconds": seconds, "tuning_s": 0.0}


def tuned_row(options: argparse.Namespace, loaded: LoadedModel, usage: Usage, trials: int, num_operators: int) -> Row:
    """The network tuned with so many trials in all, shared out over its operators, its earlier ones among them."""
    start = time.monotonic()
    tuned = loaded.tune(usage, trials=max(1, round(trials / num_operators)), run=options.out)
    built = tuned.build()
    folder = built.save(options.out / f"{built.name}-{trials}").folder
    network = Model.open(folder)
    scores = evaluate(lambda image: network.run(image), options.data, options.num_images)
    return {
        "trials": trials,
        "seconds": built.proof.seconds,
        "tuning_s": time.monotonic() - start,
        "map50": scores.map50,
        "map": scores.map,
        "relative_error": built.proof.relative_error,
        "device": tuned.target.device,
    }


def print_row(row: Row, first: Row) -> None:
    """One line of the table, its speed-up against the first."""
    seconds, base = float(row["seconds"]), float(first["seconds"])
    scores = f"{row['map50']:.1%} / {row['map']:.1%}" if "map50" in row else "as trained"
    print(
        f"{row['trials']:>6} trials  {1 / seconds:7.2f} FPS  {base / seconds:6.2f}x  mAP50 / mAP50-95 {scores}  "
        f"{float(row['tuning_s']):.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
