"""chanas/models/attention/kernel.py: its schedules compile, however few tiles and blocks there are; NaN
and infinity go through as in PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import tvm
from torch.nn import functional

from chanas.compiler.cpu.build import build_object
from chanas.compiler.cpu.lowering import pipeline
from chanas.models.attention.kernel import Heads, scheduled_attention

from ...compiler.workbench import HOST, device


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(("sequences", "heads", "tokens"), [(1, 1, 6), (2, 1, 8), (1, 2, 16)])
def test_attention_of_one_tile_or_block_compiles(
    lanes: int, blocks: int, sequences: int, heads: int, tokens: int, tmp_path: Path
) -> None:
    size, width = blocks * lanes, heads * blocks * lanes
    attention = Heads(sequences, heads, tokens, tokens, size, size, (0, width, 2 * width), 0.25)
    assert attention.fits(lanes)
    rows = sequences * attention.rows
    read = (3 * width // lanes, rows, lanes)
    function = scheduled_attention([read] * 3, attention, (width // lanes, rows, lanes), parallel=False)
    build_object(function.with_attr("global_symbol", "main"), device(lanes), tmp_path / "attention.o")
    assert (tmp_path / "attention.o").stat().st_size > 0


LANES, TOKENS = 4, 6
ROW = TOKENS * LANES
# A place among 3 · TOKENS · LANES numbers: of queries, keys, values; or of what is added to the scores.
ODD = {
    "a query": (3, np.nan),
    "a key": (ROW + 9, np.nan),
    "a value": (2 * ROW + 5, -np.nan),
    "an infinite query": (17, np.inf),
    "an infinite key": (2 * ROW - 1, -np.inf),
    "an infinite value": (2 * ROW, np.inf),
}


def attended(
    rows: npt.NDArray[np.float32], added: npt.NDArray[np.float32], *, zero_if_masked: bool = False
) -> npt.NDArray[np.float32]:
    """Attention of one head, [TOKENS, LANES], to queries, keys and values [3, TOKENS, LANES]."""
    attention = Heads(1, 1, TOKENS, TOKENS, LANES, LANES, (0, LANES, 2 * LANES), 0.5, zero_if_masked)
    shapes = [rows.shape] * 3 + [(1, 1, TOKENS, TOKENS)]
    function = scheduled_attention(shapes, attention, (1, TOKENS, LANES), parallel=False)
    library = tvm.tirx.build(function.with_attr("global_symbol", "main"), HOST.tvm_target(), pipeline())
    x, out = tvm.runtime.tensor(rows), tvm.runtime.tensor(np.zeros((1, TOKENS, LANES), np.float32))
    library["main"](x, x, x, tvm.runtime.tensor(added[None, None]), out)
    result: npt.NDArray[np.float32] = out.numpy()[0]
    return result


def random_rows(rng: np.random.Generator) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    return rng.standard_normal((3, TOKENS, LANES), np.float32), rng.standard_normal((TOKENS, TOKENS), np.float32)


def expected(rows: npt.NDArray[np.float32], added: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    q, k, v = torch.from_numpy(rows)
    result: npt.NDArray[np.float32] = (functional.softmax(q @ k.T * 0.5 + torch.from_numpy(added), -1) @ v).numpy()
    return result


@pytest.mark.parametrize("what", ODD)
def test_nan_and_infinity_in_tokens_go_through_as_in_pytorch(what: str, rng: np.random.Generator) -> None:
    rows, added = random_rows(rng)
    rows.flat[ODD[what][0]] = ODD[what][1]
    np.testing.assert_allclose(attended(rows, added), expected(rows, added), rtol=1e-5, atol=1e-5)


def test_what_is_added_to_scores_may_be_nan_or_infinite(rng: np.random.Generator) -> None:
    rows, added = random_rows(rng)
    added[0, 2], added[1, 3:], added[2, 5], added[3] = np.nan, -np.inf, np.inf, -1e30
    added[4, :5], added[4, 5] = -np.inf, np.nan
    added[5] = np.finfo(np.float32).min
    np.testing.assert_allclose(attended(rows, added), expected(rows, added), rtol=1e-5, atol=1e-5)


def test_a_query_that_may_look_at_nothing_gets_nan_of_a_softmax(rng: np.random.Generator) -> None:
    rows, added = random_rows(rng)
    added[1] = -np.inf
    wanted = expected(rows, added)
    assert np.isnan(wanted[1]).all()
    np.testing.assert_allclose(attended(rows, added), wanted, rtol=1e-5, atol=1e-5)


def test_it_gets_zeros_of_scaled_dot_product_attention(rng: np.random.Generator) -> None:
    rows, added = random_rows(rng)
    added[1], added[2] = -np.inf, np.finfo(np.float32).min
    added[3, 0], added[4, 0] = np.nan, -np.inf
    q, k, v = torch.from_numpy(rows)[:, None]
    wanted = functional.scaled_dot_product_attention(q, k, v, torch.from_numpy(added)[None])[0].numpy()
    assert (wanted[1] == 0).all()
    np.testing.assert_allclose(attended(rows, added, zero_if_masked=True), wanted, rtol=1e-5, atol=1e-5)
