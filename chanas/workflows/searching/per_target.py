"""One search for each of several targets in one command: they share an accuracy predictor and its evaluations; each has
a sub-space, a winner and a bundle of its own."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from chanas.core.arch import Architecture
from chanas.core.latency import LatencyLUT
from chanas.core.task import NO_LIMITS, Limits, Task
from chanas.core.units import format_latency
from chanas.core.usage import THIS_MACHINE, Place
from chanas.devices.gpu_use import check_free
from chanas.errors import ChanasError, CheckpointError, InfeasibleError, LUTError, MeasureError, TargetError
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.files.writing import file_digest, write_json
from chanas.workflows.searching.cross_latency import CrossLatency, cross_latencies
from chanas.workflows.searching.hand_over import versions
from chanas.workflows.searching.results import (
    PerTarget,
    TargetResult,
    check_all,
    handed_over,
    started,
    stored_results,
    with_prediction,
)
from chanas.workflows.searching.sources import AccuracySource, FinalistProver, open_source
from chanas.workflows.searching.table_search import Accuracies
from chanas.workflows.searching.targets import (
    RemoteTargets,
    TargetTable,
    check_distinct,
    check_remote,
    key_of,
    named_target,
)
from chanas.workflows.stages.stored import stored_table
from chanas.workflows.stages.tables import check_device, this_device

if TYPE_CHECKING:
    from chanas.search.config import SearchConfig
    from chanas.search.evolution.constraints import Constraint
    from chanas.search.job import Job
    from chanas.search.learning import Learned, Source

SCHEMA = 1
_NAME = re.compile(r"\w[\w.@+-]*")  # a target's name is a file's and a folder's too


def target_tables(
    run: RunDirectory,
    latency_s: Mapping[str, float],
    place: Place = THIS_MACHINE,
    remote: RemoteTargets | None = None,
) -> tuple[TargetTable, ...]:
    """The run's latency tables of the targets with their budgets, in order; `remote` has those with a key.

    Raises:
        ConfigError: there is none, or two names mean the same target.
        StageOrderError: there is no table of a target.
        TargetError: a target is unknown or in use by another process, or nothing can be measured on it from here and
            that is not allowed.
    """
    tables = [_table(run, name, budget_s, remote) for name, budget_s in latency_s.items()]
    check_distinct([t.hardware.name for t in tables])
    for table in tables:
        if table.elsewhere and not place.unproven:
            key = key_of(table.hardware.name)
            over_rpc = f"name a tracker that knows devices of key '{key}' (--rpc HOST:PORT); " if key else ""
            raise TargetError(
                f"nothing can be measured on target '{table.hardware.name}' from here: {table.elsewhere}. A search "
                f"hands over what was measured: run it on that device, with this run directory; {over_rpc}or add "
                "--unproven for the network that the table foretells, without a bundle"
            )
    check_free([t.hardware for t in tables if not t.elsewhere and t.open_pool is None], place.shared)
    return tuple(tables)


def _table(run: RunDirectory, name: str, budget_s: float, remote: RemoteTargets | None) -> TargetTable:
    path = run.lut(name)
    if _NAME.fullmatch(name) is None or not path.is_file():
        path = stored_table(run, named_target(name))
    lut = LatencyLUT.load(path)
    made_on = lut.header.target
    if made_on.name != path.stem:
        raise LUTError(f"{path} is a table of target '{made_on.name}'; a table has the name of its target")
    try:
        if remote is None or not key_of(name):
            return TargetTable(this_device(lut), budget_s, lut, path)
        hardware, open_pool = remote.take(name)
        check_device(lut, hardware)
        return TargetTable(replace(hardware, name=name), budget_s, lut, path, open_pool=open_pool)
    except LUTError:
        return TargetTable(made_on, budget_s, lut, path, f"its table is of another device ({made_on.device})")
    except (TargetError, MeasureError) as error:
        return TargetTable(made_on, budget_s, lut, path, str(error))


def search_per_target(
    run: RunDirectory,
    *,
    latency_s: Mapping[str, float],
    place: Place = THIS_MACHINE,
    accuracies: Accuracies | None = None,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    progress: bool = True,
) -> PerTarget:
    """A search for each target with its own budget; winners lie in `run.target_bundle(TARGET)`.

    What an evaluation teaches holds for all targets: sub-networks are evaluated once, inside the budgets of all in
    turn, and one predictor serves every search. A target whose search fails has its error, and the others go on. A
    call that was cut off goes on after the last target that was done.

    Args:
        latency_s: seconds by target, such as `{"cpu": 5e-3, "cpu-2t": 4e-3, "cpu@pi4": 2e-2}`.
        place: a tracker, on whose devices targets with a key (`cpu@pi4`) are measured; with `unproven`, for a target
            that can't be measured here, the network that its table predicts, without a bundle.
        accuracies: CSV of accuracies instead of the run's supernet.
        limits: of every target.

    Raises:
        StageOrderError: the supernet or a latency table is missing.
        TargetError: a target is unknown, or can't be measured here and `place.unproven` is not set.
        ConfigError: a tracker is named, and no target with a key.
        InfeasibleError: no target's budget can be met.
    """
    from chanas.search.config import SearchConfig
    from chanas.search.evolution.constraints import further_constraints

    config = config or SearchConfig()
    check_remote(latency_s, replace(place, key=None))
    with contextlib.ExitStack() as stack:
        remote = None if place.rpc is None else stack.enter_context(contextlib.closing(RemoteTargets(place)))
        tables = target_tables(run, latency_s, place, remote)
        source = open_source(run, tables[0].path, accuracies)
        for table in tables:
            table.lut.check_space(source.space)
            if not table.elsewhere:
                table.lut.check(source.space, table.hardware)
        others = [further_constraints(source.space, source.num_classes, limits, [t.hardware]) for t in tables]
        searches = _Searches(run, source, tables, others, limits, config, seed, progress)
        return searches.run_all()


@dataclass
class _Searches:
    """Learn what the searches share; `others` are the limits besides latency of each target, `jobs` the searches of
    those that can be met, by their names."""

    run: RunDirectory
    source: AccuracySource
    tables: Sequence[TargetTable]
    others: Sequence[Sequence[Constraint]]
    limits: Limits
    config: SearchConfig
    seed: int
    progress: bool
    jobs: dict[str, Job] = field(default_factory=dict)

    def run_all(self) -> PerTarget:
        """Learn, search for one target after the other, and compare what came out."""
        results = self._find_infeasible()
        if len(results) == len(self.tables):
            check_all(list(results.values()))
        learned = self._learn()
        request = self._request(learned)
        results |= self._done_before(request)
        with scratch_folder() as scratch:
            provers: dict[str, FinalistProver] = {}
            for table in self.tables:
                name = table.hardware.name
                provers[name] = self.source.prover(table, scratch / name, self.progress)
                (scratch / name).mkdir()
                if name not in results:
                    results[name] = self._search(table, provers[name], learned)
                    self._write(request, learned, results)
            ordered = [results[t.hardware.name] for t in self.tables]
            cross = self._cross([r for r in ordered if r.winner], provers, scratch)
        self._write(request, learned, results, cross)
        return PerTarget(tuple(ordered), cross, self.run.per_target)

    def _cross(
        self, results: Sequence[TargetResult], provers: Mapping[str, FinalistProver], scratch: Path
    ) -> tuple[CrossLatency, ...]:
        if not results:
            return ()
        most_images = max((t.hardware for t in self.tables), key=lambda hardware: hardware.batch)
        return cross_latencies(
            {r.target: Architecture.from_key(str(r.winner)) for r in results},
            self.tables,
            self.source.space,
            self.source.num_classes,
            provers[most_images.name].jobs,
            scratch,
            self.progress,
            {r.target: (r.measured_s, r.spread_s) for r in results},
        )

    def _started(self, table: TargetTable) -> TargetResult:
        return started(self.run, table, self.source.space, self.source.num_classes)

    def _find_infeasible(self) -> dict[str, TargetResult]:
        """The targets whose budget nothing can meet, told at once; the others have a job afterwards."""
        from chanas.search.cosearch import new_job

        out, task = {}, Task(self.source.space, self.source.num_classes)
        for table, others in zip(self.tables, self.others, strict=True):
            name = table.hardware.name
            try:
                self.jobs[name] = new_job(task, [table.budget()], others, self.config, self.seed)
            except InfeasibleError as error:
                out[name] = replace(self._started(table), error=str(error))
                if self.progress and len(self.tables) > 1:
                    tqdm.write(f"{name}: {error}; the other targets go on", file=sys.stderr)
        return out

    def _learn(self) -> Learned:
        from chanas.search.learning import learn

        return learn(list(self.jobs.values()), self._source(), self.progress)

    def _source(self) -> Source:
        """The accuracies as the search takes them."""
        from chanas.search.learning import Source

        return Source(self.run, self.source.digest, self.source.top1, self.source.table)

    def _search(self, table: TargetTable, prover: FinalistProver, learned: Learned) -> TargetResult:
        from chanas.search.cosearch import search

        name, result = table.hardware.name, self._started(table)
        if self.progress:
            tqdm.write(f"searching for {name}, budget {format_latency(table.budget_s)}", file=sys.stderr)
        try:
            outcome = search(
                self.jobs[name],
                self._source(),
                None if table.elsewhere else prover,
                learned=learned,
                result=self.run.target_result(name),
                progress=self.progress,
            )
            if table.elsewhere:
                return with_prediction(result, outcome, "table" if self.source.table else "holdout")
            bundle = self.source.hand_over(self.run.target_bundle(name), outcome, prover, table, self.limits, self.seed)
        except (InfeasibleError, MeasureError, TargetError) as error:
            return replace(result, error=str(error))
        return handed_over(result, outcome, bundle)

    def _request(self, learned: Learned) -> str:
        """A hash of all that the results depend on."""
        asked = {
            "targets": [[t.hardware.name, t.budget_s, file_digest(t.path), t.elsewhere] for t in self.tables],
            "source": self.source.digest,
            "classes": self.source.num_classes,
            "space": self.source.space.digest,
            "config": self.config.model_dump(mode="json"),
            "limits": self.limits.to_json(),
            "seed": self.seed,
            "evaluations": sorted((key, e.top1) for key, e in learned.evaluations.found.items()),
            "versions": versions(),
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

    def _done_before(self, request: str) -> dict[str, TargetResult]:
        """Read the results of the same call that was stopped earlier."""
        from chanas.bundle.codesign import CoDesign

        out: dict[str, TargetResult] = {}
        with contextlib.suppress(CheckpointError):
            asked, complete, results = stored_results(self.run)
            if asked != request or complete:
                return out
            for result in results:
                if result.bundle is None:
                    continue  # it failed, or is quickly done again
                with contextlib.suppress(ChanasError):
                    if CoDesign.load(result.bundle).architecture.key == result.winner:
                        out[result.target] = result
        return out

    def _write(
        self,
        request: str,
        learned: Learned,
        results: Mapping[str, TargetResult],
        cross: Sequence[CrossLatency] | None = None,
    ) -> None:
        known = [results[t.hardware.name] for t in self.tables if t.hardware.name in results]
        space = self.source.space
        write_json(
            self.run.per_target,
            {
                "schema": SCHEMA,
                "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "request": request,
                "complete": cross is not None,
                "space": space.to_json(),
                "supernet": self.source.digest,
                "num_classes": self.source.num_classes,
                "seed": self.seed,
                "config": self.config.model_dump(mode="json"),
                "limits": {k: v for k, v in self.limits.to_json().items() if v is not None},
                "num_evaluations": len(learned.evaluations.found),
                "error_points": 100.0 * learned.predictor.error,
                "targets": [r.to_json(self.run) for r in known],
                "cross": [asdict(c) for c in cross or ()],
            },
        )
