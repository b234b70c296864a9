"""chanas/prescheduler/models/attention/kernel.py: its schedules compile, however few tiles and blocks there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from chanas.prescheduler.codegen.cpu.build import build_object
from chanas.prescheduler.models.attention.kernel import Heads, scheduled_attention

from ...cases import device


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(("sequences", "heads", "tokens"), [(1, 1, 6), (2, 1, 8), (1, 2, 16)])
def test_attention_of_one_tile_or_block_compiles(
    lanes: int, blocks: int, sequences: int, heads: int, tokens: int, tmp_path: Path
) -> None:
    size, width = blocks * lanes, heads * blocks * lanes
    attention = Heads(sequences, heads, tokens, tokens, size, size, (0, width, 2 * width), 0.25)
    assert attention.fits(lanes)
    rows = attention.rows_in_memory
    read = (3 * width // lanes, rows, lanes)
    function = scheduled_attention([read] * 3, attention, (width // lanes, rows, lanes), parallel=False)
    build_object(function.with_attr("global_symbol", "main"), device(lanes), tmp_path / "attention.o")
    assert (tmp_path / "attention.o").stat().st_size > 0
