"""chanas/commands/search_text.py: what is said of a bundle, and of one whose module is for another device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chanas.bundle.benchmark import MODULE_ALONE, BenchmarkRow
from chanas.commands.search_text import bundle_lines, then_and_now

MEASURED = {"latency_s": 2e-3, "spread_s": 1e-5, "top1_test": 0.75, "num_test_images": 8, "top1_holdout": 0.8}


def lines(batch: int = 1, **measured: float | None) -> list[str]:
    part: dict[str, Any] = {}
    bundle: Any = SimpleNamespace(
        document={"num_macs": 1000, "num_params": 100, "targets": [part]},
        part=part,
        constraints={"latency_s": 3e-3},
        predicted={"latency_s": 2.5e-3, "top1": 0.9},
        measured=MEASURED | measured,
        architecture=SimpleNamespace(key="r8-w1", dtypes=()),
        has_weights=True,
        path=Path("bundle"),
        target=SimpleNamespace(batch=batch),
    )
    return list(bundle_lines(bundle, ["not calibrated"]))


@pytest.mark.parametrize(
    ("measured", "eager", "by"),
    [
        ({"pytorch_eager_latency_s": 8e-3}, ["PyTorch eager       8 ms on the same network (4.0x)"], "compiled module"),
        ({}, [], "PyTorch here (the module was compared with it on its own device)"),
        ({"num_disagreements": 0, "pytorch_eager_latency_s": None}, [], "compiled module"),
    ],
)
def test_the_accuracy_says_what_classified(measured: dict[str, float | None], eager: list[str], by: str) -> None:
    said = lines(**measured)
    assert f"accuracy on test    75.00% of 8 images, {by}" in said
    assert [line for line in said if line.startswith("PyTorch eager")] == eager


def test_a_latency_of_several_images_says_so() -> None:
    said = [line for line in lines(batch=32) if line.startswith("latency measured")]
    assert said[0].endswith(", 32 images at once: 16,000 images/s")
    assert not any("at once" in line for line in lines())


# ---- a benchmark beside the search -----------------------------------------------------------------------------------
def rows_of(own_us: float, alone_us: float) -> list[BenchmarkRow]:
    return [BenchmarkRow("chanas", own_us * 1e-6, 1.0), BenchmarkRow(MODULE_ALONE, alone_us * 1e-6, alone_us / own_us)]


def searched(latency_us: float | None) -> Any:
    return SimpleNamespace(measured={} if latency_us is None else {"latency_s": latency_us * 1e-6})


def test_a_benchmark_tells_pythons_share_and_how_far_it_is_from_the_search() -> None:
    assert list(then_and_now(searched(140.0), rows_of(160.0, 145.0))) == [
        "Python's share of chanas is 15 us: an image copied in, logits out.",
        "The search measured 140 us of the module alone; now it is +4%.",
    ]


@pytest.mark.parametrize("alone_us", [120.0, 160.0])
def test_a_benchmark_far_from_the_search_says_whom_to_ask(alone_us: float) -> None:
    *_, last = then_and_now(searched(140.0), rows_of(200.0, alone_us))
    assert last.startswith("That is over 10%: the machine is not as fast or not as quiet")
    assert "chanas doctor" in last


def test_a_benchmark_of_what_no_search_measured_tells_pythons_share_alone() -> None:
    assert len(list(then_and_now(searched(None), rows_of(160.0, 145.0)))) == 1
    assert list(then_and_now(searched(140.0), rows_of(160.0, 145.0)[:1])) == []
