"""One search for each of several targets in one command: they share an accuracy predictor and its evaluations; each has
a sub-space, a winner and a bundle of its own."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from chanas.core.arch import Architecture
from chanas.core.task import NO_LIMITS, Limits
from chanas.core.units import format_latency
from chanas.core.usage import THIS_MACHINE, Place
from chanas.errors import ChanasError, CheckpointError, ConfigError, InfeasibleError, MeasureError, TargetError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.files.writing import file_digest, write_json
from chanas.search.target import SearchTarget
from chanas.workflows.searching.cross_latency import CrossLatency, cross_latencies
from chanas.workflows.searching.hand_over import hand_over, versions
from chanas.workflows.searching.results import PerTarget, TargetResult, check_all, stored_results
from chanas.workflows.searching.sources import AccuracySource, SupernetSource
from chanas.workflows.searching.targets import RemoteTargets, check_remote, check_tables, read_targets

if TYPE_CHECKING:
    from chanas.search.config import SearchConfig
    from chanas.search.job import Job
    from chanas.search.learning import Learned

SCHEMA = 1


def search_per_target(
    run: RunDirectory,
    *,
    latency_s: Mapping[str, float],
    place: Place = THIS_MACHINE,
    source: AccuracySource | None = None,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    name: str | None = None,
    progress: bool = True,
) -> PerTarget:
    """A search for each target with its own budget; the winners lie in `run.bundles`, as `cpu-5ms`.

    What an evaluation teaches holds for all targets: sub-networks are evaluated once, inside the budgets of all in
    turn, and one predictor serves every search. A target whose search fails has its error, and the others go on. A
    call that was cut off goes on after the last target that was done.

    Args:
        latency_s: seconds by target, such as `{"cpu": 5e-3, "cpu-2t": 4e-3, "cpu@pi4": 2e-2}`.
        place: a tracker, on whose devices targets with a key (`cpu@pi4`) are measured; with `unproven`, for a target
            that can't be measured here, the network that its table predicts, without a bundle.
        source: of accuracies, from `open_source`; the run's supernet by default.
        limits: of every target.
        name: of the bundles, before each target's: `NAME-cpu`.

    Raises:
        StageOrderError: the supernet or a latency table is missing.
        TargetError: a target is unknown, or can't be measured here and `place.unproven` is not set.
        ConfigError: a tracker is named, and no target with a key; the name cannot be a folder's; or the settings have
            several dtypes.
        InfeasibleError: no target's budget can be met.
    """
    from chanas.bundle.places import check_name
    from chanas.search.config import SearchConfig

    if name is not None:
        check_name(name)
    config = config or SearchConfig()
    if config.dtypes:
        raise ConfigError("--dtypes goes with one network for all targets, not with --per-target; leave one out")
    check_remote(latency_s, replace(place, key=None))
    with contextlib.ExitStack() as stack:
        remote = None if place.rpc is None else stack.enter_context(contextlib.closing(RemoteTargets(place)))
        targets = read_targets(run, latency_s, place, remote)
        source = source or SupernetSource(run)
        check_tables(targets, source.task.space)
        stack.enter_context(one_writer(run.search))
        return _Searches(run, source, targets, limits, config, seed, name, progress).run_all()


@dataclass
class _Searches:
    """Learn what the searches share; `jobs` are the searches of the targets that can be met, by their names."""

    run: RunDirectory
    source: AccuracySource
    targets: Sequence[SearchTarget]
    limits: Limits
    config: SearchConfig
    seed: int
    name: str | None
    progress: bool
    jobs: dict[str, Job] = field(default_factory=dict)

    def run_all(self) -> PerTarget:
        """Learn, search for one target after the other, and compare what came out."""
        results = self._find_infeasible()
        if len(results) == len(self.targets):
            check_all(list(results.values()))
        learned = self._learn()
        request = self._request(learned)
        results |= self._earlier_results(request)
        with scratch_folder() as scratch:
            for target in self.targets:
                if target.name not in results:
                    (scratch / target.name).mkdir()
                    results[target.name] = self._search(target, scratch / target.name, learned)
                    self._write(request, learned, results)
            ordered = [results[target.name] for target in self.targets]
            cross = self._cross([r for r in ordered if r.winner], scratch)
        self._write(request, learned, results, cross)
        return PerTarget(tuple(ordered), cross, self.run.per_target)

    def _cross(self, results: Sequence[TargetResult], scratch: Path) -> tuple[CrossLatency, ...]:
        if not results:
            return ()
        winners = {r.target: Architecture.from_key(str(r.winner)) for r in results}
        prover = self.source.prover(self.targets, scratch, self.progress)
        return cross_latencies(winners, prover, {r.target: (r.measured_s, r.spread_s) for r in results})

    def _find_infeasible(self) -> dict[str, TargetResult]:
        """The targets whose budget nothing can meet, told at once; the others have a job afterwards."""
        from chanas.search.cosearch import new_job
        from chanas.search.evolution.constraints import further_constraints

        out, task = {}, self.source.task
        for target in self.targets:
            constraints = further_constraints(task.space, task.num_classes, self.limits, [target.hardware])
            try:
                self.jobs[target.name] = new_job(task, [target], constraints, self.config, self.seed)
            except InfeasibleError as error:
                out[target.name] = replace(self._result(target), error=str(error))
                if self.progress and len(self.targets) > 1:
                    tqdm.write(f"{target.name}: {error}; the other targets go on", file=sys.stderr)
        return out

    def _learn(self) -> Learned:
        from chanas.search.learning import learn

        return learn(list(self.jobs.values()), self.source.accuracies(), self.progress)

    def _search(self, target: SearchTarget, scratch: Path, learned: Learned) -> TargetResult:
        from chanas.search.cosearch import search

        result = self._result(target)
        if self.progress:
            tqdm.write(f"searching for {target.name}, budget {format_latency(target.budget_s)}", file=sys.stderr)
        prover = self.source.prover([target], scratch, self.progress)
        try:
            outcome = search(
                self.jobs[target.name],
                self.source.accuracies(),
                None if target.elsewhere else prover,
                learned=learned,
                with_alike=True,
                result=self.run.target_result(target.name),
                progress=self.progress,
            )
            if target.elsewhere:
                return result.with_prediction(outcome, "table" if self.source.table else "holdout")
            asked = self.limits.to_json()
            bundle = hand_over(
                self.run, outcome, prover, asked, self.seed, name=self._place(target).name, is_newest=False
            )
        except (InfeasibleError, MeasureError, TargetError) as error:
            return replace(result, error=str(error))
        return result.with_bundle(outcome, bundle)

    def _place(self, target: SearchTarget) -> Path:
        """The place of a target's bundle."""
        from chanas.bundle.places import default_name

        asked = default_name({target.name: target.budget_s}, self.limits.to_json(), with_target=True)
        return self.run.bundles / (asked if self.name is None else f"{self.name}-{target.name}")

    def _result(self, target: SearchTarget) -> TargetResult:
        return TargetResult.of_target(self.run, target, self.source.task, self._place(target))

    def _request(self, learned: Learned) -> str:
        """A hash of all that the results depend on."""
        asked = {
            "targets": [[t.name, t.budget_s, file_digest(self.run.lut(t.name)), t.elsewhere] for t in self.targets],
            "source": self.source.digest,
            "classes": self.source.task.num_classes,
            "space": self.source.task.space.digest,
            "config": self.config.model_dump(mode="json"),
            "limits": self.limits.to_json(),
            "seed": self.seed,
            "name": self.name,
            "evaluations": sorted((key, e.top1) for key, e in learned.evaluations.found.items()),
            "versions": versions(),
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

    def _earlier_results(self, request: str) -> dict[str, TargetResult]:
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
        known = [results[t.name] for t in self.targets if t.name in results]
        write_json(
            self.run.per_target,
            {
                "schema": SCHEMA,
                "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "request": request,
                "complete": cross is not None,
                "space": self.source.task.space.to_json(),
                "supernet": self.source.digest,
                "num_classes": self.source.task.num_classes,
                "seed": self.seed,
                "config": self.config.model_dump(mode="json"),
                "limits": self.limits.to_json(),
                "num_evaluations": len(learned.evaluations.found),
                "error_points": 100.0 * learned.predictor.error,
                "targets": [r.to_json(self.run) for r in known],
                "cross": [asdict(c) for c in cross or ()],
            },
        )
