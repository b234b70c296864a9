"""chanas/core/usage.py: names of targets are written and read in one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.core.usage import DTYPES, GPU_DTYPES, Place, TargetName, Usage

NAMES = st.builds(
    TargetName,
    st.sampled_from(["cpu", "cuda", "raspberry-pi-4", "cuda-sm_90"]),
    st.integers(1, 999),
    st.sampled_from(sorted(DTYPES | GPU_DTYPES)),
    st.integers(1, 999),
    st.sampled_from(["", "pi4", "zen4-2t"]),
)


@given(NAMES)
def test_a_name_that_is_written_is_read_as_what_it_was(name: TargetName) -> None:
    assert TargetName.parse(str(name)) == name


@pytest.mark.parametrize(
    ("usage", "name"),
    [
        (Usage(), "cpu"),
        (Usage("cpu", threads=2), "cpu-2t"),
        (Usage("cpu", threads=2, dtype="bf16", place=Place("host:9190", "pi4")), "cpu-2t-bf16@pi4"),
        (Usage("cuda", dtype="f16", batch=32), "cuda-f16-b32"),
    ],
)
def test_a_use_has_the_name_of_its_target(usage: Usage, name: str) -> None:
    assert str(usage.name) == name
    assert str(Usage.of(usage.name).name) == name.partition("@")[0]


def test_a_name_that_is_not_written_like_that_is_a_devices() -> None:
    assert TargetName.parse("a board") == TargetName("a board")
