"""chanas/commands/search_text.py: what is said of a bundle, and of one whose module is for another device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chanas.commands.search_text import bundle_lines

MEASURED = {"latency_s": 2e-3, "spread_s": 1e-5, "top1_test": 0.75, "num_test_images": 8, "top1_holdout": 0.8}


def lines(batch: int = 1, **measured: float | None) -> list[str]:
    document = {
        "num_macs": 1000,
        "num_params": 100,
        "constraints": {"latency_s": 3e-3},
        "predicted": {"latency_s": 2.5e-3, "top1": 0.9},
        "measured": MEASURED | measured,
    }
    bundle: Any = SimpleNamespace(
        document=document,
        architecture=SimpleNamespace(key="r8-w1"),
        has_weights=True,
        path=Path("bundle"),
        target=SimpleNamespace(batch=batch),
    )
    return list(bundle_lines(bundle, "not calibrated"))


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
