"""chanas/workflows/searching/per_target.py: a search and a bundle for each target, one predictor, and what each network
costs elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chanas.bundle.codesign import CoDesign
from chanas.commands.main import app
from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.units import format_latency
from chanas.core.usage import Place, Usage
from chanas.devices.host import load_target
from chanas.errors import ConfigError, InfeasibleError, LUTError, MeasureError, StageOrderError, TargetError
from chanas.files.run import RunDirectory
from chanas.files.writing import read_json, write_json
from chanas.measuring import devices
from chanas.measuring.messages import Outcome
from chanas.prescheduler.tables.networks import NetworkJob
from chanas.search.accuracy.predictor import AccuracyPredictor
from chanas.search.target import SearchTarget
from chanas.workflows.searching import per_target
from chanas.workflows.searching.cross_latency import CrossLatency, cross_lines
from chanas.workflows.searching.per_target import search_per_target
from chanas.workflows.searching.results import PerTarget
from chanas.workflows.searching.sources import AccuracyFile, AccuracySource, Prover, TableSource, open_source
from chanas.workflows.searching.targets import read_targets
from chanas.workflows.stages.reporting import report

from ...compiler.workbench import random_lut
from ...tables import CLASSES, QUICK_SEARCH, save_accuracies, save_space

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a target of two threads needs two cores")
AWAY = "cpu@away"
BUDGETS = {"cpu": 0.65, "cpu-2t": 1.0}  # by the tables below: six blocks on one thread, any number on two


def table_of(space: SearchSpace, name: str, num_threads: int, seed: int) -> LatencyLUT:
    """Random schedules and 0.1 s for every block, of a target of this machine; or of a device that isn't."""
    target = load_target("cpu", num_threads)
    if name == AWAY:
        target = dataclasses.replace(target, name=AWAY, device="A board", fingerprint="0123456789ab")
    lut = random_lut(space, space.all_blocks(CLASSES), target, seed=seed)
    return LatencyLUT(lut.header, {k: dataclasses.replace(row, median_s=0.1) for k, row in lut.rows.items()})


@pytest.fixture(scope="module")
def tables(tiny_space: SearchSpace) -> list[LatencyLUT]:
    devices = {"cpu": 1, "cpu-2t": 2, AWAY: 1}
    return [table_of(tiny_space, name, threads, seed) for seed, (name, threads) in enumerate(devices.items())]


@pytest.fixture
def prepared(tiny_space: SearchSpace, tables: list[LatencyLUT], tmp_path: Path) -> RunDirectory:
    """A run directory with tables of two targets of this machine and of one that isn't here, beside its space and a
    table of accuracies."""
    run = RunDirectory(tmp_path / "run")
    save_space(tiny_space, tmp_path / "space.yaml")
    for table in tables:
        table.save(run.lut(table.header.target.name))
    save_accuracies(tiny_space, tmp_path / "accuracies.csv")
    return run


class Instant(Prover):
    """Nothing is compiled: networks take a thousandth of what the table says, and modules are empty files."""

    source: InstantSource

    def measure(self, target: SearchTarget, jobs: Mapping[Architecture, NetworkJob]) -> dict[Architecture, Outcome]:
        assert (target.open_pool is not None) == ("@" in target.name)
        self.source.timed.append((target.name, [a.key for a in jobs]))
        self.source.before(target)
        for architecture in jobs:
            self.library(architecture, target).write_bytes(b"")
        seconds = {a: 1e-3 * sum(target.lut.block_s(b) for b in job.blocks) for a, job in jobs.items()}
        return {a: Outcome(s, 1e-7, None) for a, s in seconds.items()}


class InstantSource(TableSource):
    """Accuracies whose finalists are timed at once. `timed` has the target and the networks of each time that some
    were timed; `before` is called first, and may raise."""

    def __init__(self, source: TableSource) -> None:
        assert source.table is not None
        super().__init__(source.run, source.task, source.table)
        self.timed: list[tuple[str, list[str]]] = []
        self.before: Callable[[SearchTarget], object] = lambda target: None

    def prover(self, targets: Sequence[SearchTarget], scratch: Path, progress: bool = True) -> Prover:
        return Instant(self, targets, scratch, progress)


def opened(run: RunDirectory) -> TableSource:
    folder = run.root.parent
    source = open_source(run, AccuracyFile(folder / "accuracies.csv", folder / "space.yaml"))
    assert isinstance(source, TableSource)
    return source


@pytest.fixture
def instant(prepared: RunDirectory) -> InstantSource:
    return InstantSource(opened(prepared))


def searched(run: RunDirectory, source: AccuracySource, **more: Any) -> PerTarget:
    how = {"latency_s": BUDGETS, "config": QUICK_SEARCH, "progress": False, "source": source}
    return search_per_target(run, **{**how, **more})


@pytest.mark.slow
def test_each_target_has_a_winner_a_bundle_and_a_result_of_its_own_and_all_are_measured_everywhere(
    prepared: RunDirectory, tiny_space: SearchSpace
) -> None:
    found = searched(prepared, opened(prepared))
    found.check()
    one, two = found.targets
    assert (one.target, two.target) == ("cpu", "cpu-2t")
    assert one.winner != two.winner
    for result in found.targets:
        assert result.bundle is not None
        bundle = CoDesign.load(result.bundle)
        assert bundle.targets == (result.target,)
        assert bundle.architecture.key == result.winner
        assert bundle.constraints == {"latency_s": result.budget_s}
        stored = read_json(prepared.target_result(result.target), "result")
        assert (stored["winner"], stored["target"]) == (result.winner, result.target)
        assert result.measured_s == bundle.measured["latency_s"]
    assert not prepared.bundle.exists()
    document = read_json(prepared.per_target, "targets")
    assert document["complete"] is True
    assert [t["bundle"] for t in document["targets"]] == ["bundles/cpu-650ms", "bundles/cpu-2t-1s"]
    assert len(document["targets"][0]["covered"]) == len(tiny_space.sub_spaces)
    costs = {(c.network, c.target): c for c in found.cross}
    assert set(costs) == {(a, b) for a in BUDGETS for b in BUDGETS}
    for (network, target), cost in costs.items():
        winner = next(t.winner for t in found.targets if t.target == network)
        table = LatencyLUT.load(prepared.lut(target))
        assert cost.predicted_s == genome_seconds(table, tiny_space, Architecture.from_key(str(winner)))
        assert cost.measured_s is not None
        assert 0 < cost.measured_s < 0.1
        assert cost.error is None
    assert costs["cpu-2t", "cpu"].predicted_s == pytest.approx(0.8)  # more than the budget there
    text = "\n".join(found.lines())
    assert "what each network costs on each target" in text
    assert format_latency(costs["cpu", "cpu-2t"].measured_s or 0.0) in text


def test_each_target_has_a_bundle_of_its_own_network(prepared: RunDirectory, instant: InstantSource) -> None:
    found = searched(prepared, instant)
    found.check()
    for result in found.targets:
        assert result.bundle is not None
        bundle = CoDesign.load(result.bundle)
        assert bundle.architecture.key == result.winner
        assert bundle.targets == (result.target,)
    assert not prepared.bundle.exists()
    assert {(c.network, c.target) for c in found.cross} == {(a, b) for a in BUDGETS for b in BUDGETS}
    assert all(c.measured_s is not None and c.predicted_s is not None for c in found.cross)


def test_the_predictor_is_taught_once(
    prepared: RunDirectory, instant: InstantSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []
    fit = AccuracyPredictor.fit
    monkeypatch.setattr(AccuracyPredictor, "fit", lambda self, *data: fits.append(1) or fit(self, *data))
    searched(prepared, instant)
    assert len(fits) == 1


def test_networks_are_timed_in_turns_where_there_are_others_to_compare_with(
    prepared: RunDirectory, instant: InstantSource
) -> None:
    found = searched(prepared, instant)
    winners = [str(t.winner) for t in found.targets]
    assert instant.timed[-2:] == [("cpu", winners), ("cpu-2t", winners)]
    instant.timed.clear()
    same = searched(prepared, instant, latency_s={"cpu": 1.0, "cpu-2t": 1.0})
    assert len({t.winner for t in same.targets}) == 1
    assert [name for name, _ in instant.timed] == ["cpu", "cpu-2t"]  # as finalists, and not again
    assert [c.measured_s for c in same.cross] == [t.measured_s for t in same.targets for _ in same.targets]


def genome_seconds(lut: LatencyLUT, space: SearchSpace, architecture: Architecture) -> float:
    return float(lut.latency_s(space, CLASSES, genome.encode(space, [architecture]))[0])


def test_a_budget_out_of_reach_leaves_the_other_target_its_network(
    prepared: RunDirectory, instant: InstantSource
) -> None:
    found = searched(prepared, instant, latency_s={"cpu": 1e-9, "cpu-2t": 1.0})
    failed, kept = found.targets
    assert failed.bundle is None
    assert "the smallest reachable is" in str(failed.error)
    assert kept.bundle is not None
    CoDesign.load(kept.bundle)
    with pytest.raises(InfeasibleError, match=r"1 of 2 targets failed; the others are handed over: cpu: no architect"):
        found.check()
    # the other's network is compared on the device of the failed one all the same
    assert {(c.network, c.target) for c in found.cross} == {("cpu-2t", "cpu"), ("cpu-2t", "cpu-2t")}


def test_a_bundle_of_an_earlier_search_is_not_taken_for_that_of_one_that_failed(
    prepared: RunDirectory, instant: InstantSource
) -> None:
    assert [t.leftover for t in searched(prepared, instant).targets] == ["", ""]
    assert [t.leftover for t in searched(prepared, instant).targets] == ["", ""]  # replaced
    searched(prepared, instant, name="mine")
    found = searched(prepared, instant, latency_s={"cpu": 1e-9, "cpu-2t": 1.0}, name="mine")
    failed, kept = found.targets
    assert (failed.bundle, failed.leftover, kept.leftover) == (None, "bundles/mine-cpu", "")
    assert failed.line().endswith("(bundles/mine-cpu is of an earlier search)")
    with pytest.raises(InfeasibleError, match=r"\(bundles/mine-cpu is of an earlier search\)$"):
        found.check()
    assert "bundles/mine-cpu is of an earlier search." in report(prepared).read_text(encoding="utf-8")


def test_budgets_that_are_all_out_of_reach_are_one_line_and_leave_nothing(
    prepared: RunDirectory, instant: InstantSource
) -> None:
    with pytest.raises(InfeasibleError, match=r"2 of 2 targets failed: cpu: no architecture .*; cpu-2t: no arch"):
        searched(prepared, instant, latency_s={"cpu": 1e-9, "cpu-2t": 1e-9})
    assert not prepared.search.exists()


@pytest.mark.parametrize("error", [MeasureError, TargetError])
def test_a_target_that_fails_when_measured_does_not_end_the_others(
    error: type[Exception], prepared: RunDirectory, instant: InstantSource
) -> None:
    def fail(target: SearchTarget) -> None:
        if target.name == "cpu":
            raise error("none of 3 finalists could be compiled")

    instant.before = fail
    found = searched(prepared, instant)
    assert [t.error for t in found.targets] == ["none of 3 finalists could be compiled", None]


def test_a_call_that_was_cut_off_keeps_the_targets_that_were_done(
    prepared: RunDirectory, instant: InstantSource
) -> None:
    def interrupt(target: SearchTarget) -> None:
        if target.name == "cpu-2t":
            raise KeyboardInterrupt

    instant.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        searched(prepared, instant)
    stored = read_json(prepared.per_target, "targets")
    assert stored["complete"] is False
    assert [t["target"] for t in stored["targets"]] == ["cpu"]
    again = InstantSource(opened(prepared))
    found = searched(prepared, again)
    assert again.timed[0][0] == "cpu-2t"  # and not cpu
    assert [t.error for t in found.targets] == [None, None]
    anew = InstantSource(opened(prepared))
    searched(prepared, anew)  # a whole one is done anew
    assert [name for name, _ in anew.timed[:2]] == ["cpu", "cpu-2t"]


def test_what_was_cut_off_under_another_budget_or_has_lost_its_bundle_is_done_again(
    prepared: RunDirectory, instant: InstantSource
) -> None:
    def cut_off() -> None:
        write_json(prepared.per_target, {**read_json(prepared.per_target, "targets"), "complete": False})
        instant.timed.clear()

    searched(prepared, instant, latency_s={"cpu": 0.9})
    cut_off()
    searched(prepared, instant, latency_s={"cpu": 0.8})
    assert instant.timed
    cut_off()
    searched(prepared, instant, latency_s={"cpu": 0.8})
    assert instant.timed == []
    cut_off()
    (prepared.bundles / "cpu-800ms" / "module.so").unlink()
    searched(prepared, instant, latency_s={"cpu": 0.8})
    assert instant.timed


def test_several_dtypes_are_for_one_network(prepared: RunDirectory, instant: InstantSource) -> None:
    config = QUICK_SEARCH.model_copy(update={"dtypes": ("f32", "int8")})
    with pytest.raises(ConfigError, match="--dtypes goes with one network for all targets, not with --per-target"):
        searched(prepared, instant, config=config)


def test_a_target_that_is_not_here_is_refused_with_the_ways_out(prepared: RunDirectory, instant: InstantSource) -> None:
    with pytest.raises(
        TargetError,
        match=r"on target 'cpu@away' from here: .*\(A board\).*key 'away' \(--rpc HOST:PORT\); or add --unprov",
    ):
        searched(prepared, instant, latency_s={"cpu": 1.0, AWAY: 1.0})
    with pytest.raises(TargetError, match="unknown target 'moon'"):
        read_targets(prepared, {"moon": 1.0})
    with pytest.raises(
        TargetError, match=r"'cpu@moon' is a device elsewhere: `chanas prescheduler --rpc .* --key moon`"
    ):
        read_targets(prepared, {"cpu@moon": 1.0})
    prepared.lut("cpu-2t").unlink()
    with pytest.raises(
        StageOrderError, match=r"of target 'cpu-2t' in .*; there are tables of: cpu, cpu@away .*; run .*"
    ):
        read_targets(prepared, {"cpu": 1.0, "cpu-2t": 1.0})


def test_a_target_that_is_not_here_can_be_predicted_and_nothing_is_pretended(
    prepared: RunDirectory, instant: InstantSource
) -> None:
    found = searched(prepared, instant, latency_s={"cpu": 1.0, AWAY: 1.0}, place=Place(unproven=True))
    found.check()
    here, away = found.targets
    assert here.measured_s is not None
    assert (away.measured_s, away.bundle) == (None, None)
    assert away.winner is not None
    assert away.predicted_s is not None
    assert away.predicted_s <= 1.0
    assert "its table is of another device (A board)" in away.line()
    assert "no bundle" in away.line()
    assert [bundle.name for bundle in prepared.bundles.iterdir()] == ["cpu-1s"]
    costs = {(c.network, c.target): c for c in found.cross}
    assert {c.measured_s for (_, target), c in costs.items() if target == AWAY} == {None}
    assert all(c.predicted_s is not None for c in costs.values())
    assert "A board" in report(prepared).read_text(encoding="utf-8")


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tracker that knows the board of the table: gives what was held and let go."""
    log: list[str] = []

    @contextlib.contextmanager
    def held(usage: Usage) -> Iterator[Any]:
        if usage.place.key != "away":
            raise MeasureError(f"no device of key '{usage.place.key}' at tracker {usage.place.rpc}")
        log.append("taken")
        yield (
            dataclasses.replace(load_target("cpu"), name=AWAY, device="A board", fingerprint="0123456789ab"),
            contextlib.nullcontext,
        )
        log.append("given back")

    monkeypatch.setattr(devices, "timing_device", held)
    return log


def test_a_target_elsewhere_is_searched_and_measured_over_rpc(
    prepared: RunDirectory, instant: InstantSource, tracker: list[str]
) -> None:
    found = searched(prepared, instant, latency_s={"cpu": 0.65, AWAY: 1.0}, place=Place("host:9190"))
    found.check()
    here, away = found.targets
    assert away.measured_s is not None
    assert away.elsewhere == ""
    assert CoDesign.load(prepared.bundles / f"{AWAY}-1s").architecture.key == away.winner
    assert all(c.measured_s is not None for c in found.cross)
    winners = [str(here.winner), str(away.winner)]
    assert instant.timed[-2:] == [("cpu", winners), (AWAY, winners)]
    assert tracker == ["taken", "given back"]


@pytest.mark.usefixtures("tracker")
def test_a_device_that_no_tracker_knows_is_refused_or_predicted(prepared: RunDirectory, instant: InstantSource) -> None:
    table = LatencyLUT.load(prepared.lut("cpu"))
    moon = dataclasses.replace(table.header, target=dataclasses.replace(table.header.target, name="cpu@moon"))
    LatencyLUT(moon, table.rows).save(prepared.lut("cpu@moon"))
    latency_s = {"cpu@moon": 1.0, AWAY: 1.0}
    with pytest.raises(TargetError, match=r"on target 'cpu@moon' from here: no device of key 'moon' at tracker host"):
        searched(prepared, instant, latency_s=latency_s, place=Place("host:9190"))
    tolerated = Place("host:9190", unproven=True)
    moon_result, away = searched(prepared, instant, latency_s=latency_s, place=tolerated).targets
    assert moon_result.measured_s is None
    assert away.measured_s is not None


@pytest.mark.usefixtures("tracker")
@pytest.mark.parametrize("error", [MeasureError, TargetError])
def test_a_device_that_is_lost_in_the_end_leaves_the_bundles(
    error: type[Exception], prepared: RunDirectory, instant: InstantSource
) -> None:
    def lose(target: SearchTarget) -> None:
        if target.name == AWAY and (prepared.bundles / f"{AWAY}-1s").exists():
            raise error("no device of key 'away' came back")

    instant.before = lose
    found = searched(prepared, instant, latency_s={"cpu": 0.65, AWAY: 1.0}, place=Place("host:9190"))
    found.check()
    assert all(t.bundle is not None for t in found.targets)
    assert {c.error for c in found.cross if c.target == AWAY} == {"no device of key 'away' came back"}


def test_what_each_rule_costs_is_told_for_each_target_where_it_is_asked_for(
    prepared: RunDirectory, instant: InstantSource
) -> None:
    assert not [line for line in searched(prepared, instant).lines() if " rule " in line]
    found = searched(prepared, instant, config=QUICK_SEARCH.model_copy(update={"rule": "all"}))
    told = [line.split(":")[0].strip() for line in found.lines() if " rule " in line]
    assert told == 2 * ["rule paper", "rule accuracy", "rule all"]


@pytest.mark.parametrize(
    ("latency_s", "error", "says"),
    [
        ({}, ConfigError, "expected one latency for each of some targets, got none"),
        ({"cpu": 1.0, "cpu-1t": 1.0}, ConfigError, "expected one latency for each of some targets, got cpu, cpu"),
        ({"../cpu": 1.0}, TargetError, "unknown target '../cpu'"),
    ],
)
def test_targets_that_are_not_clear_are_one_line(
    latency_s: dict[str, float], error: type[Exception], says: str, prepared: RunDirectory
) -> None:
    with pytest.raises(error, match=says):
        read_targets(prepared, latency_s)


def test_a_table_under_another_name_is_refused(prepared: RunDirectory) -> None:
    prepared.lut("other").write_text(prepared.lut("cpu").read_text())
    with pytest.raises(LUTError, match=r"other\.json is a table of target 'cpu'"):
        read_targets(prepared, {"other": 1.0})


def test_the_command_hands_over_what_it_can_and_its_exit_code_says_that_one_failed(
    prepared: RunDirectory, instant: InstantSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = per_target.search_per_target

    def quick(run: RunDirectory, **options: Any) -> PerTarget:
        return real(run, **{**options, "source": instant, "config": QUICK_SEARCH, "progress": False})

    monkeypatch.setattr(per_target, "search_per_target", quick)
    folder = prepared.root.parent
    command = ["search", "--per-target", "--latency", "cpu:1us", "--latency", "cpu-2t:1s", "--run", str(prepared.root)]
    command += ["--accuracy-table", str(folder / "accuracies.csv"), "--space", str(folder / "space.yaml")]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, InfeasibleError)
    accuracies, first, second, *_ = done.output.splitlines()
    assert accuracies.startswith("accuracies ")
    assert first.startswith("cpu          budget 1 us: failed: no architecture")
    assert second.startswith("cpu-2t       budget 1 s: ")
    assert "1 of 2 targets failed" in str(done.exception)


@pytest.mark.parametrize(
    "arguments",
    [["--per-target", "--latency", "5ms"], ["--unproven", "--latency", "cpu:5ms"], ["--per-target", "--pareto"]],
)
def test_the_flags_need_targets_by_name(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["search", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert "expected --per-target with --latency TARGET:BUDGET" in str(done.exception)


def test_the_table_of_costs_tells_what_is_only_predicted_and_what_is_over_the_budget() -> None:
    cross = [
        CrossLatency("cpu", "cpu", 1e-3, 1.1e-3, 1e-6),
        CrossLatency("cpu", "far", 3e-3),
        CrossLatency("far", "cpu", None),
        CrossLatency("far", "far", 1e-3),
    ]
    head, first, second = cross_lines(cross, {"cpu": 2e-3, "far": 2e-3}, format_latency)
    assert head.split() == ["network", "of", "on", "cpu", "on", "far"]
    assert first.split() == ["cpu", "1.1", "ms", "~3", "ms!"]
    assert second.split() == ["far", "not", "covered", "~1", "ms"]
