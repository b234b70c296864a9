"""The folder of a tuned network, written whole."""

from __future__ import annotations

import math
import os
import statistics
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save_file

from chanas.bundle.tuned import DOCUMENT, MODULE, SOURCE, WEIGHTS, TunedNetwork
from chanas.core.units import format_latency
from chanas.core.usage import HERE, Usage
from chanas.devices.peak import shares_of_peak
from chanas.errors import ChanasError, ConfigError
from chanas.files.writing import file_digest, free_name, replacing_folder, write_json
from chanas.operators.precision import FLOAT32

if TYPE_CHECKING:
    from chanas.compiler.cpu.module import ProgramModule
    from chanas.compiler.program import Program
    from chanas.core.target import HardwareTarget
    from chanas.prescheduler.program import TunedOperators


def default_folder(
    run: Path, name: str, usage: Usage, shapes: Mapping[str, Sequence[int]] = types.MappingProxyType({})
) -> Path:
    """The place of a network in the run directory, one for each use of a device and each choice of shapes: `NAME`,
    `NAME-2t` for two threads, `NAME-1x3x64x64` for an input of this shape, `NAME-raspberry-pi-4`."""
    of_inputs = "".join(f"-{'x'.join(map(str, shapes[given]))}" for given in sorted(shapes))
    use = str(usage.name)
    on_device = use.removeprefix(HERE.device) if usage.device == HERE.device else f"-{use}"
    return run / f"{name}{of_inputs}{on_device}"


def check_place(folder: Path, run: Path | None = None) -> None:
    """Check that a network may be saved in `folder`, before the time for tuning it is spent.

    Args:
        run: the run directory, which must not lie in a folder that is replaced.

    Raises:
        ConfigError: there is something else than an earlier tuned network, or it cannot be written.
    """
    is_free = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / DOCUMENT).is_file():
        raise ConfigError(f"{folder} is there already and was not made by `chanas tune`; name another folder")
    if run is not None and run.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{folder} is replaced as a whole, and would take the records of run {run} along; name another folder"
        )
    parent = next(p for p in folder.absolute().parents if os.path.lexists(p))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write {folder}: {parent} is no folder that you may write to; name another one")


def write_folder(
    folder: Path, library: bytes, made: ProgramModule, document: Mapping[str, Any], *, keep_faster: bool = False
) -> str:
    """Write module, weights and `tuned.json`; a folder that is there is replaced when the new one is complete, or set
    aside if it is of another network. The text says what became of it; empty where there was none.

    Args:
        keep_faster: leave what is there if it is the same network, of another tuning, and faster.

    Raises:
        ConfigError: there is something else than an earlier tuned network.
        ChanasError: it cannot be written.
    """
    check_place(folder)
    kept, told, earlier_s = _place_of_earlier(folder, document)
    if keep_faster and earlier_s < document["measured"]["latency_s"]:
        return told
    names = [f"parameter{i}" for i in range(len(made.parameters))]
    with replacing_folder(folder, kept) as temporary:
        (temporary / MODULE).write_bytes(library)
        save_file(dict(zip(names, made.parameters, strict=True)), temporary / WEIGHTS)
        (temporary / SOURCE).write_text(made.to_json(), encoding="utf-8")
        hashes = {name: file_digest(temporary / name) for name in (MODULE, WEIGHTS, SOURCE)}
        write_json(temporary / DOCUMENT, {**document, "parameters": names, "hashes": hashes})
    return told


def _place_of_earlier(folder: Path, document: Mapping[str, Any]) -> tuple[Path | None, str, float]:
    """The place that the network in `folder` moves to, None for the same one, which is replaced; a line about it; and
    its latency in seconds if it is the same one of another tuning, else infinity."""
    if not (folder / DOCUMENT).is_file():
        return None, "", math.inf
    kept = free_name(folder)
    try:
        earlier = TunedNetwork.open(folder).document
    except ChanasError:  # damaged, or of another version
        return kept, f"what was in {folder} cannot be read, and is kept as {kept}", math.inf
    if _identity(earlier) == _identity(document):
        if earlier["run_id"] == document["run_id"]:
            return None, "", math.inf
        earlier_s = float(earlier["measured"]["latency_s"])
        return None, f"the same network took {format_latency(earlier_s)} before", earlier_s
    return kept, f"what was in {folder} is another network or for another device, and is kept as {kept}", math.inf


def operator_entries(
    program: Program, tuned: TunedOperators, target: HardwareTarget, peak_gflops: float | None
) -> list[dict[str, Any]]:
    """The operators of `tuned.json`, in the order in which they are met first, as the module numbers them, with the
    trials of each where they are known."""
    counts = Counter(o.key for o in program.tuned)
    entries: list[dict[str, Any]] = []
    rated: list[tuple[dict[str, Any], float]] = []  # of the operations that are done in float32, which the peak is of
    for key, count in counts.items():
        chosen, summary = tuned.choices[key], tuned.tried.get(key)
        workload, lanes = chosen.workload, key[1]
        entry: dict[str, Any] = {
            "key": workload.key,
            "point": list(chosen.point),
            "count": count,
            "seconds": chosen.seconds,
            "workload": workload.to_json(),
        }
        if chosen.taken_from:
            entry["taken_from"] = chosen.taken_from
        if lanes != target.vector_lanes:
            entry["lanes"] = lanes
        if summary is not None:
            entry |= {"trials": summary.num_tried, "failed": summary.num_failed, "share_of_peak": None}
            entry |= {"mean_gflops": summary.mean_gflops, "best_gflops": summary.best_gflops}
        entries.append(entry)
        if workload.dtype == FLOAT32.dtype and entry.get("best_gflops") is not None:
            rated.append((entry, entry["best_gflops"] * workload.num_flops_done / workload.num_flops))
    for (entry, _), share in zip(rated, shares_of_peak([rate for _, rate in rated], peak_gflops), strict=True):
        entry["share_of_peak"] = share
    return entries


def _identity(document: Mapping[str, Any]) -> tuple[Any, ...]:
    inputs = [(entry["name"], tuple(entry["shape"])) for entry in document["inputs"]]
    return document["origin"].get("sha256"), inputs, document["target"]["name"], document["target"]["fingerprint"]


@dataclass(frozen=True)
class Evaluation:
    """Seconds of single calls of a saved network on random inputs, in a process of the user's."""

    mean_s: float
    deviation_s: float
    median_s: float


@dataclass(frozen=True)
class SavedModel:
    """A network in its folder; `told` says what became of an earlier one there, if any."""

    folder: Path
    told: str = ""

    def open(self) -> TunedNetwork:
        """The network, to be run."""
        return TunedNetwork.open(self.folder)

    def add(self, **entries: Any) -> None:
        """Add entries to `tuned.json`.

        Raises:
            CheckpointError: the folder is damaged.
        """
        write_json(self.folder / DOCUMENT, {**self.open().document, **entries})

    def evaluate(self, num_calls: int = 30) -> Evaluation:
        """Time single calls on random inputs.

        Raises:
            TargetError: it was compiled for another device.
        """
        network = self.open()
        network.run(*network.random_inputs())
        seconds = network.time_calls(num_calls)
        return Evaluation(statistics.fmean(seconds), statistics.stdev(seconds), statistics.median(seconds))
