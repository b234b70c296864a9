"""chanas/workflows/searching/targets.py: from `cpu-2t:4ms` to a device, its table and its budget."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.core.usage import Place, Usage
from chanas.devices import host
from chanas.devices.host import load_target
from chanas.errors import ConfigError, LUTError, StageOrderError, TargetError, UnitError
from chanas.files.run import RunDirectory
from chanas.measuring import devices
from chanas.workflows.searching.targets import RemoteTargets, hold_targets, named_target, parse_latencies, table_path

from ...tables import CLASSES, random_table

HOST = load_target("cpu")
ELSEWHERE = Usage(place=Place("host:9190"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str, int]]:
    """What `load_target` was asked for."""
    calls: list[tuple[str, int, str, int]] = []

    def load(name: str, num_threads: int = 1, dtype: str = "f32", batch: int = 1) -> HardwareTarget:
        calls.append((name, num_threads, dtype, batch))
        return HOST

    monkeypatch.setattr(host, "load_target", load)
    return calls


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("cpu", ("cpu", 1, "f32", 1)),
        ("cpu-2t", ("cpu", 2, "f32", 1)),
        ("cpu-bf16", ("cpu", 1, "bf16", 1)),
        ("cpu-16t-bf16", ("cpu", 16, "bf16", 1)),
        ("cuda-f16", ("cuda", 1, "f16", 1)),
        ("cuda-tf32", ("cuda", 1, "tf32", 1)),
        ("cuda-b32", ("cuda", 1, "f32", 32)),
        ("cuda-f16-b8", ("cuda", 1, "f16", 8)),
        ("raspberry-pi-4", ("raspberry-pi-4", 1, "f32", 1)),
        ("raspberry-pi-4-4t", ("raspberry-pi-4", 4, "f32", 1)),
        ("", ("", 1, "f32", 1)),
    ],
)
def test_a_targets_name_says_how_the_device_is_used(
    name: str, means: tuple[str, int, str, int], asked: list[tuple[str, int, str, int]]
) -> None:
    named_target(name)
    assert asked == [means]


@pytest.mark.parametrize("name", ["cpu"])
def test_the_name_of_a_target_leads_back_to_it(name: str) -> None:
    assert named_target(name).name == name


@pytest.mark.parametrize(
    ("texts", "latencies"),
    [
        (["20ms"], 0.02),
        (["cpu:5ms"], {"cpu": 5e-3}),
        (["cpu:5ms", "cpu-2t: 4ms"], {"cpu": 5e-3, "cpu-2t": 4e-3}),
    ],
)
def test_latencies_are_one_or_one_for_each_target(texts: list[str], latencies: float | Mapping[str, float]) -> None:
    assert parse_latencies(texts) == latencies


@pytest.mark.parametrize(
    ("texts", "error", "says"),
    [
        (["5ms", "4ms"], ConfigError, "expected a target before each of several latencies, such as cpu-2t:5ms"),
        (["cpu:5ms", "4ms"], ConfigError, "expected a target before each of several latencies, such as cpu-2t:4ms"),
        ([":4ms"], ConfigError, "expected a target before each"),
        (["cpu:5ms", "cpu:4ms"], ConfigError, "target 'cpu' has two latency budgets"),
        (["cpu:5"], UnitError, "expected a positive latency with a unit"),
        (["cpu:5MB"], UnitError, "unknown unit 'MB' in latency"),
        (["cpu:"], UnitError, "expected a positive latency with a unit"),
    ],
)
def test_latencies_that_are_not_clear_are_one_line(texts: list[str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_latencies(texts)


@pytest.fixture
def run(tmp_path: Path, tiny_space: SearchSpace) -> RunDirectory:
    """A run directory with latency tables under all names that are searched for here."""
    run, lut = RunDirectory(tmp_path), random_table(tiny_space)
    for name, num_threads in (("cpu", 1), ("cpu@pi4", 1), ("cpu-2t@pi4", 2)):
        target = dataclasses.replace(HOST, name=name, num_threads=num_threads)
        LatencyLUT(dataclasses.replace(lut.header, target=target), lut.rows).save(run.lut(name))
    return run


@pytest.fixture
def source(tiny_space: SearchSpace) -> SimpleNamespace:
    """Accuracies of the space of these tables."""
    return SimpleNamespace(task=Task(tiny_space, CLASSES))


def test_a_single_latency_is_that_of_the_target_asked_for(
    asked: list[tuple[str, int, str, int]], run: RunDirectory, source: SimpleNamespace
) -> None:
    with hold_targets(run, source, 2e-3, Usage("cpu", 4, "bf16")) as (target,):
        assert asked == [("cpu", 4, "bf16", 1)]
        assert (target.name, target.budget_s) == ("cpu", 2e-3)
        assert target.lut.rows


@pytest.mark.parametrize(
    ("latency_s", "error", "says"),
    [
        ({"cpu": 1.0, "moon-2t": 1.0}, TargetError, "unknown target 'moon'"),
        ({"cpu": 1.0, "cpu-1t": 2.0}, ConfigError, "expected one latency for each of some targets, got cpu, cpu"),
        ({}, ConfigError, "expected one latency for each of some targets, got none"),
        (
            {"cpu@pi4": 1.0},
            TargetError,
            r"cpu@pi4' is a device elsewhere: .*`chanas search --latency cpu@pi4:BUDGET --rpc HOST:PORT` takes it",
        ),
    ],
    ids=["unknown", "twice", "none", "elsewhere without a tracker"],
)
def test_targets_that_are_not_clear_are_one_line(
    latency_s: dict[str, float], error: type[Exception], says: str, run: RunDirectory, source: SimpleNamespace
) -> None:
    with pytest.raises(error, match=says), hold_targets(run, source, latency_s):
        pass


def test_a_table_is_found_by_any_name_of_its_target(run: RunDirectory) -> None:
    assert table_path(run, "cpu") == table_path(run, "cpu-1t") == run.lut("cpu")
    assert table_path(run, "cpu@pi4") == run.lut("cpu@pi4")  # which need not be here
    run.lut("cpu").unlink()
    with pytest.raises(StageOrderError, match="no latency table of target 'cpu'"):
        table_path(run, "cpu-1t")


def test_schedules_that_would_be_other_programs_are_refused_before_anything_is_searched(
    run: RunDirectory, source: SimpleNamespace
) -> None:
    lut = LatencyLUT.load(run.lut("cpu"))
    LatencyLUT(dataclasses.replace(lut.header, space_version=99), lut.rows).save(run.lut("cpu"))
    with pytest.raises(LUTError, match="version 99"), hold_targets(run, source, 2e-3):
        pass


# ---- a device elsewhere ---------------------------------------------------------------------------------------------
def test_a_search_on_a_device_holds_one_that_times_its_finalists(
    run: RunDirectory, source: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []
    target = dataclasses.replace(load_target("cpu"), name="cpu-2t@pi4", num_threads=2)

    @contextlib.contextmanager
    def held(usage: Usage) -> Iterator[Any]:
        log.append(usage)
        yield target, "its pool"
        log.append("given back")

    monkeypatch.setattr(devices, "timing_device", held)
    with hold_targets(run, source, 2e-3, Usage("cpu", 2, place=Place("127.0.0.1:9190", "pi4"))) as (found,):
        assert (found.hardware, found.budget_s, found.open_pool) == (target, 2e-3, "its pool")
    assert log == [Usage("cpu", 2, place=Place("127.0.0.1:9190", "pi4", num_devices=1)), "given back"]


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A tracker that has one device of every key: what is done with them, in order."""
    log: list[Any] = []

    @contextlib.contextmanager
    def held(usage: Usage) -> Iterator[Any]:
        name = f"{usage.device}{'' if usage.threads == 1 else f'-{usage.threads}t'}@{usage.place.key}"
        log.append(f"take {name} of {usage.place.rpc}")
        assert usage.place.num_devices == 1
        yield dataclasses.replace(HOST, name=name, num_threads=usage.threads), pool
        log.append(f"give {name} back")

    @contextlib.contextmanager
    def pool(target: HardwareTarget) -> Iterator[Any]:
        log.append(f"time on {target.name}")
        yield

    monkeypatch.setattr(devices, "timing_device", held)
    return log


def test_several_targets_name_the_keys_of_their_devices(
    run: RunDirectory, source: SimpleNamespace, tracker: list[Any]
) -> None:
    with hold_targets(run, source, {"cpu": 2.0, "cpu@pi4": 1.0}, ELSEWHERE) as (here, there):
        assert [(t.name, t.budget_s) for t in (here, there)] == [("cpu", 2.0), ("cpu@pi4", 1.0)]
        assert here.open_pool is None
        assert there.open_pool is not None
        for _ in range(2):
            with there.open_pool(there.hardware):
                pass
    assert tracker == ["take cpu@pi4 of host:9190", *2 * ["time on cpu@pi4"], "give cpu@pi4 back"]


def test_targets_of_one_key_take_turns_on_its_device(
    run: RunDirectory, source: SimpleNamespace, tracker: list[Any]
) -> None:
    asked = {"cpu@pi4": 1.0, "cpu-2t@pi4": 1.0}
    with hold_targets(run, source, asked, ELSEWHERE) as targets:
        tracker.clear()  # both were asked what they are
        for target in targets:
            assert target.open_pool is not None
            with target.open_pool(target.hardware):
                pass
    assert tracker == [
        "give cpu-2t@pi4 back",
        "take cpu@pi4 of host:9190",
        "time on cpu@pi4",
        "give cpu@pi4 back",
        "take cpu-2t@pi4 of host:9190",
        "time on cpu-2t@pi4",
        "give cpu-2t@pi4 back",
    ]


@pytest.mark.usefixtures("tracker")
def test_another_kind_of_device_does_not_take_ones_place() -> None:
    with contextlib.closing(RemoteTargets(ELSEWHERE.place)) as remote:
        hardware, open_pool = remote.take("cpu@pi4")
        other = dataclasses.replace(hardware, fingerprint="0123456789ab", device="A board")
        with (
            pytest.raises(TargetError, match=r"of key 'pi4' are of different kinds: .*device A board there"),
            open_pool(other),
        ):
            pass


@pytest.mark.parametrize(
    ("latency_s", "rpc", "key", "says"),
    [
        ({"cpu": 1.0, "cpu@pi4": 1.0}, "host:9190", "pi4", "name it in the target: cpu@pi4:5ms"),
        ({"cpu": 1.0}, "host:9190", None, "expected a target elsewhere with --rpc, such as --latency cpu@KEY:5ms"),
        ({"cpu@pi4": 1.0, "cpu-1t@pi4": 1.0}, "host:9190", None, "one latency for each of some targets"),
    ],
)
def test_where_to_time_and_the_targets_have_to_fit(
    latency_s: dict[str, float],
    rpc: str,
    key: str | None,
    says: str,
    run: RunDirectory,
    source: SimpleNamespace,
    tracker: list[Any],
) -> None:
    with pytest.raises(ConfigError, match=says), hold_targets(run, source, latency_s, Usage(place=Place(rpc, key))):
        pass
    assert len([line for line in tracker if "take" in line]) == len([line for line in tracker if "give" in line])


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("cpu@pi4", "--rpc HOST:PORT --key pi4"),
        ("cpu-2t-bf16@zen4", "--rpc HOST:PORT --key zen4 --threads 2 --dtype bf16"),
        ("cuda-f16-b32@h200", "--target cuda --rpc HOST:PORT --key h200 --dtype f16 --batch 32"),
    ],
)
def test_a_target_elsewhere_names_the_command_that_makes_its_table(name: str, command: str) -> None:
    with pytest.raises(TargetError, match=f"`chanas prescheduler {command}` makes its table"):
        named_target(name)
