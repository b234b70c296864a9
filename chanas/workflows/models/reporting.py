"""The report page of a tuned network, with what the records of its run say of the operators."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.target import tvm_version
from chanas.core.units import is_seconds
from chanas.errors import ChanasError, CheckpointError, ConfigError, one_line
from chanas.files.run import RunDirectory
from chanas.operators.keys import workload_of_key
from chanas.operators.workload import Workload

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork
    from chanas.prescheduler.records.store import TuningRecord
    from chanas.report.reading import Tuning
    from chanas.report.spaces import TriedSpace

NUM_SPACES = 3
"""Operators whose schedule spaces are drawn: those that take most of the time."""


def report_tuned(folder: Path) -> Path:
    """Write the report page of a tuned network into its folder. Where the records of its run are not there, curves and
    spaces are left out, with a line that says so.

    Raises:
        CheckpointError: it is no such folder, or damaged.
        ChanasError: the page cannot be written.
    """
    from chanas.bundle.tuned import TunedNetwork
    from chanas.report.tuned import TunedData, build_tuned_report

    network = TunedNetwork.open(folder)
    operators, rate = _operators(network)
    notes: list[str] = []
    records = _records(network, operators, notes)
    tuning = _tuning(operators, records) if any(records.values()) else None
    spaces = _spaces(network, [o for o in operators[:NUM_SPACES] if records.get(o["key"])], records, notes)
    return build_tuned_report(folder, TunedData(network.document, rate, tuning, spaces, notes))


def _operators(network: TunedNetwork) -> tuple[list[dict[str, Any]], float | None]:
    """Entries of the operators, those that take most of the time first, and GFLOP/s of the network; None where its
    operations are not known.

    Raises:
        CheckpointError: a time is none, or an operator is.
    """
    from chanas.bundle.tuned import DOCUMENT
    from chanas.report.tuned import total_s

    document, place = network.document, network.folder / DOCUMENT
    latency_s, entries = document["measured"].get("latency_s"), document["operators"]
    if not all(map(is_seconds, [latency_s, *(entry["seconds"] for entry in entries)])):
        raise CheckpointError(f"{place} is damaged (expected times above 0); make it again with `chanas tune`")
    by_key: dict[str, dict[str, Any]] = {}  # one may stand there for several that compute the same
    for entry in entries:
        key = entry["key"] + (f" in blocks of {entry['lanes']}" if "lanes" in entry else "")
        before = by_key.get(key)
        by_key[key] = {**entry, "key": key, "count": entry["count"] + (before["count"] if before else 0)}
    operators, rate = sorted(by_key.values(), key=lambda operator: -total_s(operator)), None
    try:
        if operators and all(operator.get("workload") is not None for operator in operators):
            flops = sum(o["count"] * Workload.from_json(o["workload"]).num_flops for o in operators)
            rate = flops / latency_s / 1e9
    except (TypeError, ValueError, ChanasError) as error:
        raise CheckpointError(f"{place} is damaged ({one_line(error)}); make it again with `chanas tune`") from error
    return operators, rate


def _run_of(network: TunedNetwork) -> RunDirectory | None:
    run = network.document.get("run")
    return None if run is None else RunDirectory(os.path.normpath(network.folder / run))


def _records(network: TunedNetwork, operators: list[dict[str, Any]], notes: list[str]) -> dict[str, list[TuningRecord]]:
    """Trials of each operator in the run, by its key, on the device and with the compiler that the network is for."""
    from chanas.prescheduler.records.sources import open_records
    from chanas.prescheduler.records.store import device_key

    run, left_out = _run_of(network), "curves and schedule spaces are left out"
    if run is None:
        notes.append(f"tuned.json does not say which run's records it was tuned with: {left_out}.")
        return {}
    if not run.records.is_file():
        notes.append(f"The records that it was tuned with are not at {run.records}: {left_out}.")
        return {}
    document = network.document
    compiler = document.get("versions", {}).get("tvm") or tvm_version()
    device = device_key(network.target, compiler, document.get("space_version"))
    try:
        with open_records(run.records) as file:
            found = {operator["key"]: file.trials(device, operator["key"]) for operator in operators}
    except CheckpointError as error:
        notes.append(f"{error}: {left_out}.")
        return {}
    if not any(found.values()):
        notes.append(f"{run.records} has no records of its operators on {network.target.device}: {left_out}.")
    return found


def _tuning(operators: list[dict[str, Any]], records: dict[str, list[TuningRecord]]) -> Tuning:
    from chanas.report.reading import NUM_CURVES, Tuning, TuningCurve, best_so_far
    from chanas.report.tuned import total_s

    shown = [operator for operator in operators if records[operator["key"]]][:NUM_CURVES]
    curves = [
        TuningCurve(o["key"], best_so_far([record.seconds for record in records[o["key"]]]), o["count"]) for o in shown
    ]
    tried = [record for of_operator in records.values() for record in of_operator]
    return Tuning(
        num_workloads=sum(bool(of_operator) for of_operator in records.values()),
        num_trials=len(tried),
        num_failed=sum(not record.is_valid for record in tried),
        curves=tuple(curve for curve in curves if curve.best_s),
        share=sum(map(total_s, shown)) / (sum(map(total_s, operators)) or 1.0),
    )


def _spaces(
    network: TunedNetwork, operators: list[dict[str, Any]], records: dict[str, list[TuningRecord]], notes: list[str]
) -> list[TriedSpace]:
    """The spaces of some operators, as the file of knobs that it was tuned with changes them."""
    from chanas.compiler.backends import schedule_space
    from chanas.compiler.knobs import extended, read_knobs
    from chanas.prescheduler.records.explored import explored
    from chanas.prescheduler.records.knobs import kept_knobs
    from chanas.workflows.models.spaces import drawable

    run, knobs = _run_of(network), network.document.get("knobs")
    if not operators or run is None:
        return []
    change = None
    if knobs is not None:
        kept = kept_knobs(run, knobs["hash"])
        try:
            change = None if kept is None else read_knobs(kept)
        except ConfigError as error:  # a knob of another version
            notes.append(f"{error}: spaces without it.")
        if kept is None:
            told = f"{knobs['name']} ({knobs['hash']})"
            notes.append(f"The file of knobs {told} is not in {run.knobs}: spaces without it.")
    found = []
    for operator in operators:
        stored = operator.get("workload")
        try:
            workload = workload_of_key(operator["key"]) if stored is None else Workload.from_json(stored)
            space = schedule_space(workload, network.target)
            space = space if change is None else change.apply(space)
        except ChanasError as error:  # of an older version, or of a package that is not there
            notes.append(f"The space of {operator['key']} is left out: {error}.")
            continue
        tried = [dataclasses.replace(r, point=extended(r.point, space)) for r in records[operator["key"]]]
        found.append(drawable(explored(space, network.target, tried)))
    return [space for space in found if space.points]
