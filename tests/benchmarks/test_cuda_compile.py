"""benchmarks/cuda_compile.py: what it draws, and what it makes of points that fail."""

from __future__ import annotations

from typing import Any

import pytest

from chanas.compiler.cuda import build as cuda_build
from chanas.compiler.cuda.nvrtc import GPUCompileError, why_no_nvrtc
from chanas.core.target import gpu_in_dtype
from chanas.devices.target_files import arch_target

REASON = why_no_nvrtc()
KINDS = {"kxk (image)", "kxk", "1x1", "depthwise", "pooling", "dense", "squeeze"}


@pytest.mark.parametrize("dtype", ["f32", "f16", "tf32"])
def test_points_are_of_every_kind_of_operator_and_in_the_type(load: Any, dtype: str) -> None:
    target = gpu_in_dtype(arch_target("sm_90"), dtype)
    operators = load("cuda_compile").operators(target)
    assert operators.keys() == KINDS
    assert {w.dtype for workloads in operators.values() for w in workloads} == {target.dtype}


def test_a_point_against_the_limits_is_not_legal_and_its_time_does_not_count(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, target = load("cuda_compile"), arch_target("sm_90")
    pools = module.operators(target)["pooling"]

    def refuse(*_: Any) -> Any:
        raise GPUCompileError("the kernel is against the limits of sm_90: threads x=2048 of 1024")

    monkeypatch.setattr(cuda_build, "verify", refuse)
    row = module.measure(target, "pooling", pools, 2, 0)
    assert (row["points"], row["legal"], row["compiled"], row["stages_ms"]) == (2, 0, 0, {})
    assert row["errors"] == ["GPUCompileError: the kernel is against the limits of sm_90: threads x=2048 of 1024"]
    figures = module.figures_of([row])
    assert (figures["legal_share"].met, figures["milliseconds_each"].met) == (False, False)
    assert "pooling" in module.line(row)


def test_figures_are_those_of_the_worst_row(load: Any) -> None:
    rows = [
        {"points": 60, "legal": 60, "compiled": 59, "median_ms": 40.0},
        {"points": 60, "legal": 57, "compiled": 57, "median_ms": 101.0},
    ]
    figures = load("cuda_compile").figures_of(rows)
    assert {name: (figure.value, figure.met) for name, figure in figures.items()} == {
        "legal_share": (0.95, True),
        "compiled_share": (0.95, True),
        "milliseconds_each": (101.0, False),
    }


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--arch", "sm_75"], "dtype tf32 needs a GPU of sm_80 or newer"),
        (["--arch", "sm_1"], "sm_1"),
        (["--dtypes", "f32,f8"], "f8"),
        (["--batch", "0"], "expected --batch of at least 1"),
    ],
)
def test_what_cannot_be_compiled_is_one_line(load: Any, options: list[str], says: str) -> None:
    with pytest.raises(SystemExit, match=rf"^cuda_compile: error: [^\n]*{says}[^\n]*$"):
        load("cuda_compile").main(["--quick", *options])
