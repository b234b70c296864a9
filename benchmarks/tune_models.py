"""Finished networks that `chanas tune` tuned beside what people run instead: same weights, inputs, threads and cores.

    python benchmarks/tune_models.py [--quick] [--networks resnet18 …] [--threads 1] [--minutes 10 | --trials N]
                                     [--from FOLDER] [--run runs/tune_models] [--untuned] [--metaschedule [--seconds S]]
                                     [--again] [--seed 0]

Networks of torchvision, a transformer and a detector (`exported_networks.py`), with random weights. Each is tuned for
so many minutes, or with so many trials per operator, in a run directory that all networks share: operators that two of
them have are tuned once. Then it is timed beside PyTorch eager (in the faster of two memory layouts), torch.compile
(frozen weights), ONNX Runtime, OpenVINO (float32, latency hint) and LiteRT (`pip install litert-torch`; a remark beside
its time says which nodes its delegate XNNPACK leaves), each in a process of its own, pinned to the same cores, in
turns; with --untuned also beside TVM without schedules, a few calls of it. A contender whose first output differs from
PyTorch's is out. With --from, folders that `chanas tune` made are timed as they are.

With --metaschedule, TVM's MetaSchedule tunes the same ONNX file (`metaschedule_worker.py` says how) for as long as
`chanas tune` took for it, by `tuned.json`, or for --seconds, and takes part. `untuned_tasks` of its row are operators
that it had no time for; they run without schedules.

Figures are geometric means of the peer's median over ours, over networks with depthwise convolutions (`mobile`), over
the others of torchvision (`rest`), over those from elsewhere (`other`) and over all: to the best of ONNX Runtime,
OpenVINO and, where it ran, LiteRT, and to each peer. A peer that did not run on all networks of a group leaves no
figure. `most_without_schedule` is the largest share of a network's time in operators without a schedule of their own.
Results are written after each network; the same command goes on with those that are missing, with --again it begins
anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import operator
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Figure, finish, geometric_mean, machine_kind, result_path, write_result
from contenders import Contender, ContenderError, Timing, time_in_turns
from exported_networks import EXPORTED, export_network
from metaschedule import METASCHEDULE, describe, kept_answer
from metaschedule import tune_network as tune_with_metaschedule
from network_latency import CHANNELS_LAST, PEERS, TOLERANCE, Compared, print_table, relative_error

from chanas.core.usage import Usage
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork
    from chanas.core.effort import NetworkEffort
    from chanas.models.sources.model import OpenedModel
    from chanas.workflows.models.chain import LoadedModel

NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "inception_v3",
    "vgg16",
    "mnasnet1_0",
    *EXPORTED,
)
MOBILE = ("mobilenet", "efficientnet", "shufflenet", "mnasnet")
"""How the names of networks with depthwise convolutions begin."""
OURS, UNTUNED, RUNTIMES = "chanas", "TVM untuned", ("onnxruntime", "openvino")
LITERT = "LiteRT"
ALL_PEERS = {**PEERS, "litert": LITERT, "metaschedule": METASCHEDULE}
GOALS = {
    "mobile_vs_best_runtime": 1.25,
    "rest_vs_best_runtime": 1.0,
    "least_vs_best_runtime": 0.9,
    "least_vs_eager": 2.0,
}
MOST_WITHOUT_SCHEDULE = 0.05
DEFAULT_MINUTES, SLOW_ROUNDS, SLOW_S = 10.0, 3, 1.0
QUICK_NETWORK, QUICK_PIXELS = "squeezenet1_1", 64


@dataclass(frozen=True)
class Options:
    """Options that results depend on."""

    networks: tuple[str, ...]
    threads: int
    minutes: float | None
    trials: int | None
    seed: int
    folder: Path | None = None
    """Of tuned networks that are there already."""
    untuned: bool = False
    metaschedule: bool = False
    seconds: float | None = None
    """Of tuning with MetaSchedule; None: as many as ours took."""
    quick: bool = False

    @property
    def run_name(self) -> str:
        """Of the folder that records of such tuning lie in: `1t-10min-seed0`."""
        return f"{self.threads}t-{self.effort}-seed{self.seed}"

    @property
    def effort(self) -> str:
        """`10min`, `64trials`, or both."""
        parts = (self.minutes is not None and f"{self.minutes:g}min", self.trials and f"{self.trials}trials")
        return "-".join(part for part in parts if part)

    @property
    def rounds(self) -> tuple[int, float]:
        """Rounds, and seconds of one at least."""
        return (5, 0.01) if self.quick else (41, 0.03)

    def result_name(self) -> str:
        """`tune_models`, `tune_models-resnet18-vgg16-2t`, `tune_models-of-tuned`."""
        networks = "" if self.networks == NETWORKS else "-".join(self.networks)
        of = "" if self.folder is None else f"of-{self.folder.resolve().name}"
        return "-".join(["tune_models", *filter(None, (networks, of, "" if self.threads == 1 else f"{self.threads}t"))])

    def to_json(self) -> dict[str, Any]:
        effort = {"minutes": self.minutes, "trials": self.trials} if self.folder is None else {}
        metaschedule = {"metaschedule_seconds": self.seconds or "ours"} if self.metaschedule else {}
        return {"threads": self.threads, "seed": self.seed, **effort, **metaschedule}


@dataclass(frozen=True)
class Row:
    """A network: what was measured, or why nothing was."""

    network: str
    content: Mapping[str, Any]

    def median_s(self, peer: str) -> float | None:
        """Seconds of a contender; PyTorch eager in the faster of its layouts."""
        contenders = self.content.get("contenders", {})
        names = (peer, CHANNELS_LAST) if peer == PEERS["eager"] else (peer,)
        return min((contenders[n]["median_s"] for n in names if n in contenders), default=None)

    def ratio(self, *peers: str) -> float | None:
        """Seconds of the fastest of the peers as a multiple of ours; None unless all of them ran."""
        theirs, own = [self.median_s(peer) for peer in peers], self.median_s(OURS)
        return None if own is None or None in theirs else min(t for t in theirs if t is not None) / own

    def ratio_to_best(self) -> float | None:
        """Seconds of the fastest runtime as a multiple of ours; LiteRT is one where it ran."""
        more = [LITERT] if self.median_s(LITERT) is not None else []
        return self.ratio(*(PEERS[runtime] for runtime in RUNTIMES), *more)


def load_network(name: str, run: Path, quick: bool) -> LoadedModel:
    """A network of torchvision, or one that is exported to the run directory.

    Raises:
        ChanasError: it cannot be opened.
    """
    from chanas.workflows.models.chain import Model

    if name in EXPORTED:
        return Model.load(export_network(name, run))
    shapes = {"image": (1, 3, QUICK_PIXELS, QUICK_PIXELS)} if quick else None
    return Model.load(f"torchvision:{name}", shapes)


def tune_network(
    loaded: LoadedModel, folder: Path, run: Path, options: Options, effort: NetworkEffort | None = None
) -> TunedNetwork:
    """The tuned network in a folder, made now unless it is there; with another effort than that of the options.

    Raises:
        ChanasError: it cannot be tuned.
    """
    from chanas.bundle.tuned import TunedNetwork
    from chanas.core.effort import NetworkEffort

    if not folder.is_dir():
        effort = effort or NetworkEffort(trials=options.trials, minutes=options.minutes, seed=options.seed)
        tuned = loaded.tune(Usage("cpu", options.threads), effort=effort, run=RunDirectory(run))
        tuned.build().save(folder)
    return TunedNetwork.open(folder)


def compare(network: TunedNetwork, opened: OpenedModel, scratch: Path, searched: Path, options: Options) -> Compared:
    """Start every contender, check what it computes, time all in turns.

    Args:
        searched: MetaSchedule's folder.
    """
    import numpy as np

    inputs = opened.random_inputs()
    expected = np.asarray(opened.answer(inputs)[0], np.float64).ravel().tolist()
    np.savez(scratch / "inputs.npz", *inputs)
    result = Compared(network.name, f"{len(network.document['operators'])} tuned operators")
    kinds = _arguments(network, opened, scratch, searched, options, result.notes)
    with contextlib.ExitStack() as stack:
        calls: dict[str, tuple[Contender, int]] = {}
        for name, (kind, arguments) in kinds.items():
            try:
                contender = stack.enter_context(
                    Contender(kind, options.threads, inputs=str(scratch / "inputs.npz"), **arguments)
                )
            except ContenderError as error:
                result.notes[name] = str(error)
                continue
            if remark := contender.remark():
                result.notes[name] = remark
            found = dict(zip((name, CHANNELS_LAST), range(contender.num_calls), strict=False))
            calls.update({n: (contender, call) for n, call in found.items()})
        for name, (contender, call) in list(calls.items()):
            try:
                difference = relative_error(contender.output(call), expected)
            except ContenderError as error:
                result.notes[name] = str(error)
                del calls[name]
                continue
            if not difference <= TOLERANCE:
                result.notes[name] = f"outputs differ from the framework's by {difference:.2g}"
                del calls[name]
            elif name == OURS:
                result.relative_error = difference
        slow = {name: calls.pop(name) for name in _slow(calls)}
        result.timings.update(_timed(calls, *options.rounds) | _timed(slow, SLOW_ROUNDS, 0.0))
    return result


def _slow(calls: Mapping[str, tuple[Contender, int]]) -> list[str]:
    """Contenders that may have operators without schedules, and take so long that a few calls say enough."""
    there = [name for name in (UNTUNED, METASCHEDULE) if name in calls]
    return [name for name in there if name == UNTUNED or calls[name][0].run(calls[name][1], 1) > SLOW_S]


def _timed(calls: Mapping[str, tuple[Contender, int]], rounds: int, min_round_s: float) -> dict[str, Timing]:
    return time_in_turns(calls, rounds, min_round_s) if calls else {}


def _arguments(
    network: TunedNetwork, opened: OpenedModel, scratch: Path, searched: Path, options: Options, notes: dict[str, str]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Kind and arguments of each contender's process; a note on each that cannot take part."""
    from chanas.errors import ModelError
    from chanas.workflows.models.contenders import Subject, onnx_file

    kinds: dict[str, tuple[str, dict[str, Any]]] = {OURS: ("tuned network", {"folder": str(network.folder)})}
    torch_peers = [PEERS["eager"], *([] if options.quick else [PEERS["torch_compile"]]), LITERT]
    if opened.program is not None:
        import torch

        torch.export.save(opened.program, scratch / "program.pt2")
        source = {"program": str(scratch / "program.pt2")}
        kinds.update({name: ("finished network", {"contender": name, **source}) for name in torch_peers})
    else:
        notes.update(dict.fromkeys(torch_peers, "the network comes from an ONNX file"))
    of_tvm = [*([UNTUNED] if options.untuned else []), *([METASCHEDULE] if options.metaschedule else [])]
    of_onnx = [*(PEERS[runtime] for runtime in RUNTIMES), *of_tvm]
    place = Path(opened.origin["source"]) if opened.origin["kind"] == "onnx" else scratch / "network.onnx"
    try:
        path = onnx_file(Subject(opened.program, place, (), options.threads))
    except ModelError as error:
        notes.update(dict.fromkeys(of_onnx, str(error)))
        return kinds
    for name in of_onnx:
        kinds[name] = ("finished network", {"contender": name, "onnx": str(path)})
    if options.untuned:
        kinds[UNTUNED] = (UNTUNED, {"onnx": str(path), "target": network.target.to_json()})
    if options.metaschedule:
        seconds = options.seconds or network.document["seconds"]["tune"]
        answer = tune_with_metaschedule(path, network.target, seconds, options.seed, searched)
        kinds[METASCHEDULE] = (METASCHEDULE, {"library": answer["library"]})
        if "error" in answer:
            notes[METASCHEDULE] = answer["error"]
            del kinds[METASCHEDULE]
    return kinds


def measure(name: str, run: Path, options: Options) -> dict[str, Any]:
    """Tune a network and compare it; what result files keep of it.

    Raises:
        ChanasError: it cannot be opened, tuned or run.
    """
    from chanas.bundle.tuned import TunedNetwork
    from chanas.errors import ConfigError
    from chanas.workflows.models.bench import open_origin
    from chanas.workflows.models.operators import operator_places, share_unscheduled

    if options.folder is None:
        loaded = load_network(name, run, options.quick)
        network, opened = tune_network(loaded, run / name, run, options), loaded.opened
    else:
        network = TunedNetwork.open(options.folder / name)
        opened = open_origin(network)
    if network.target.num_threads != options.threads:
        raise ConfigError(f"{network.folder} is for {network.target.num_threads} thread(s); give them as --threads")
    searched = run / f"{name}-metaschedule"
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as scratch:
        compared = compare(network, opened, Path(scratch), searched, options)
    print_table(compared)
    row = {**compared.to_json(), **{key: network.document[key] for key in ("measured", "seconds", "trials")}}
    row["origin"] = _without(network.document["origin"], "source")
    row["without_schedule"] = share_unscheduled(operator_places(network))
    print(f"  {row['without_schedule']:.1%} of the time in operators without a schedule")
    answer = kept_answer(searched) if options.metaschedule else None
    if answer is None:
        return row
    print(f"  {describe(answer)}")
    return {**row, "metaschedule": _without(answer, "library")}


def _without(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Content without a path, which says nothing on other machines; hashes say what lay there."""
    return {key: value for key, value in content.items() if key != path}


def kept_rows(options: Options) -> dict[str, Row]:
    """Rows of the last run of the same options on this kind of machine, but those of networks that failed."""
    path = result_path(options.result_name(), machine_kind())
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if any(content.get(key) != value for key, value in options.to_json().items()):
        return {}
    found = (row for row in content["networks"] if "error" not in row and row["network"] in options.networks)
    return {row["network"]: Row(row["network"], row) for row in found}


def groups_of(networks: Sequence[str]) -> dict[str, list[str]]:
    """Names of the networks of each group; a group that has none is left out."""
    groups: dict[str, list[str]] = {"mobile": [], "rest": [], "other": []}
    for name in networks:
        groups["mobile" if name.startswith(MOBILE) else "other" if name in EXPORTED else "rest"].append(name)
    return {group: names for group, names in groups.items() if names}


def figures_of(rows: Mapping[str, Row], networks: Sequence[str]) -> dict[str, Figure]:
    """Geometric means over each group of networks and the least ratios; no value unless all have one. Goals are for
    all networks."""
    found: dict[str, float | None] = {}
    ratio: dict[str, Callable[[Row], float | None]] = {"best_runtime": Row.ratio_to_best}
    ratio |= {short: operator.methodcaller("ratio", peer) for short, peer in ALL_PEERS.items()}
    for short, of in ratio.items():
        ratios = {name: of(rows[name]) if name in rows else None for name in networks}
        for group, names in {**groups_of(networks), "all": networks}.items():
            found[f"{group}_vs_{short}"] = _unless_missing(geometric_mean, [ratios[name] for name in names])
        found[f"least_vs_{short}"] = _unless_missing(min, list(ratios.values()))
    goals = GOALS if set(networks) == set(NETWORKS) else {}
    shares = [rows[name].content.get("without_schedule") if name in rows else None for name in networks]
    return {
        **{name: Figure(value, goals.get(name)) for name, value in found.items()},
        "most_without_schedule": Figure(_unless_missing(max, shares), MOST_WITHOUT_SCHEDULE, lower_is_better=True),
    }


def _unless_missing(of: Callable[[list[float]], float | None], ratios: Sequence[float | None]) -> float | None:
    there = [ratio for ratio in ratios if ratio is not None]
    return of(there) if ratios and len(there) == len(ratios) else None


def print_rows(rows: Mapping[str, Row]) -> None:
    """Milliseconds of all contenders, and ratios to ours."""
    names = (OURS, *ALL_PEERS.values())
    print(f"\n{'ms':22s}" + "".join(f"{name:>15s}" for name in (*names, "best runtime", "eager")))
    for row in rows.values():
        if "error" in row.content:
            print(f"{row.network:22s}  {row.content['error']}")
            continue
        medians = (row.median_s(name) for name in names)
        ratios = (row.ratio_to_best(), row.ratio(PEERS["eager"]))
        cells = [f"{'-':>15s}" if m is None else f"{m * 1e3:15.3f}" for m in medians]
        cells += [f"{'-':>15s}" if r is None else f"{r:14.2f}x" for r in ratios]
        print(f"{row.network:22s}" + "".join(cells))


def parse_options(arguments: Sequence[str] | None) -> tuple[Options, Path, bool]:
    """Options, the run directory of tuning, and whether what was measured is measured again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small network, one trial, no torch.compile")
    parser.add_argument("--networks", nargs="+", help="names in torchvision, bert_tiny, detector, or names in --from")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="threads of every contender")
    parser.add_argument("--minutes", type=float, help="of tuning each network (10 without --trials)")
    parser.add_argument("--trials", type=int, help="schedule points per operator on average")
    parser.add_argument("--from", dest="folder", type=Path, help="a folder of folders that `chanas tune` made")
    parser.add_argument("--run", type=Path, default=Path("runs/tune_models"), help="where tuning keeps its records")
    parser.add_argument("--untuned", action="store_true", help="time TVM without schedules too")
    parser.add_argument("--metaschedule", action="store_true", help="tune with TVM's MetaSchedule and time that too")
    parser.add_argument("--seconds", type=float, help="of tuning with MetaSchedule (as many as ours took)")
    parser.add_argument("--again", action="store_true", help="measure all networks, those that were measured too")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    default = (QUICK_NETWORK,) if given.quick else NETWORKS
    if given.folder is not None:
        default = tuple(sorted(path.parent.name for path in given.folder.glob("*/tuned.json")))
        if not default:
            parser.error(f"{given.folder} has no folders that `chanas tune` made")
    trials = given.trials or (1 if given.quick else None)
    minutes = DEFAULT_MINUTES if given.minutes is None and trials is None else given.minutes
    options = Options(
        tuple(given.networks or default),
        given.threads,
        minutes,
        trials,
        given.seed,
        given.folder,
        given.untuned,
        given.metaschedule,
        given.seconds,
        given.quick,
    )
    return options, given.run, given.again


def main(arguments: Sequence[str] | None = None) -> None:
    options, run, again = parse_options(arguments)
    rows = {} if again or options.quick else kept_rows(options)
    with contextlib.ExitStack() as stack:
        if options.quick:
            run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chanas-bench-")))
        run = run / options.run_name
        for name in options.networks:
            if name in rows:
                print(f"{name}: measured already")
                continue
            try:
                rows[name] = Row(name, measure(name, run, options))
            except (ChanasError, ContenderError) as error:
                print(f"{name}: {error}")
                rows[name] = Row(name, {"network": name, "error": str(error)})
            if not options.quick:
                write_result(options.result_name(), figures_of(rows, options.networks), _extra(rows, options))
    print_rows(rows)
    print()
    finish(options.result_name(), figures_of(rows, options.networks), options.quick, _extra(rows, options))


def _extra(rows: Mapping[str, Row], options: Options) -> dict[str, Any]:
    return {**options.to_json(), "networks": [dict(row.content) for row in rows.values()]}


if __name__ == "__main__":
    main()
