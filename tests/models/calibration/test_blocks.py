"""chanas/models/calibration/blocks.py: a searched network in int8 computes about what it does in float32."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import pytest

import chanas.models.calibration.blocks as module
from chanas.compiler.cases import random_network
from chanas.compiler.emulation import Parameters, emulated_logits
from chanas.core.arrays import Float32Array
from chanas.core.blocks import BlockConfig, computing, with_conversions
from chanas.errors import CheckpointError
from chanas.models.calibration.blocks import calibrated_blocks
from chanas.network.folding import GRIDS, SHIFT, quantise_operators

BLOCKS = (
    BlockConfig("stem", 16, 3, 0, 16, 3, 2, "hswish"),
    BlockConfig("mbconv", 8, 16, 48, 16, 3, 1, "relu", residual=True),
    BlockConfig("mbconv", 8, 16, 64, 24, 5, 2, "hswish", use_se=True),
    BlockConfig("head", 4, 24, 0, 40, activation="hswish"),
    BlockConfig("classifier", 1, 40, 32, 10, activation="hswish"),
)
PARAMETERS, IMAGES, LOGITS = random_network(BLOCKS, seed=0, batch=24)


@pytest.fixture(scope="module")
def calibrated() -> list[Mapping[str, Float32Array]]:
    return calibrated_blocks(BLOCKS, PARAMETERS, IMAGES, "int8")


def error(parameters: Parameters) -> float:
    found = emulated_logits(BLOCKS, parameters, IMAGES, "int8", exact=True)
    return float(((found - LOGITS) ** 2).sum() / (LOGITS**2).sum())


def test_logits_are_near_those_of_float32(calibrated: list[Mapping[str, Float32Array]]) -> None:
    assert error(calibrated) < 0.02


def test_fewer_numbers_lose_more(calibrated: list[Mapping[str, Float32Array]]) -> None:
    """A grid sixteen times as coarse, of one block."""
    coarse = [dict(own) for own in calibrated]
    for number in (1, 2):
        coarse[number][GRIDS] = calibrated[number][GRIDS] * np.array([16.0, 1.0], np.float32)
        coarse[number][GRIDS][:, 1] //= 16
    coarse[2][GRIDS][0] = coarse[1][GRIDS][-1]
    assert error(coarse) > 4 * error(calibrated)


def test_a_block_reads_the_numbers_that_the_one_before_writes(calibrated: list[Mapping[str, Float32Array]]) -> None:
    for before, after in itertools.pairwise(calibrated):
        np.testing.assert_array_equal(before[GRIDS][-1], after[GRIDS][0])


def test_weights_stay_as_they_are(calibrated: list[Mapping[str, Float32Array]]) -> None:
    for own, found in zip(PARAMETERS, calibrated, strict=True):
        assert found.keys() - own.keys() <= {GRIDS, *(SHIFT.format(i) for i in range(1, 7))}
        for name, value in own.items():
            np.testing.assert_array_equal(found[name], value)


def test_corrected_biases_are_taken_where_they_help_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(_blocks: object, parameters: Parameters, _images: Float32Array, _dtype: str) -> Parameters:
        shift = np.full(16, 10.0, np.float32)
        return [{**own, SHIFT.format(1): shift} if i == 0 else own for i, own in enumerate(parameters)]

    monkeypatch.setattr(module, "_corrected", worse)
    found = calibrated_blocks(BLOCKS, PARAMETERS, IMAGES, "int8")
    assert not any(SHIFT.format(1) in own for own in found)


def test_a_shift_is_added_to_a_bias(calibrated: list[Mapping[str, Float32Array]]) -> None:
    block, own = BLOCKS[1], {k: v for k, v in calibrated[1].items() if not k.startswith("shift")}
    plain, moved = (
        quantise_operators(block, given)[0].numbers
        for given in (own, {**own, SHIFT.format(1): np.ones(48, np.float32)})
    )
    assert plain is not None
    assert moved is not None
    assert plain.bias is not None
    assert moved.bias is not None
    np.testing.assert_allclose(moved.bias - plain.bias, 1.0, rtol=1e-5)
    assert dataclasses.replace(moved, bias=None).input == plain.input


def test_a_network_that_was_not_calibrated_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match=f"parameter {GRIDS} of block {BLOCKS[0].key} is missing; it was not calibr"
    ):
        emulated_logits(BLOCKS, PARAMETERS, IMAGES, "int8", exact=True)


# ---- several dtypes -------------------------------------------------------------------------------------------------
def in_dtypes(*dtypes: str) -> tuple[BlockConfig, ...]:
    """The blocks with a dtype each, and what converts between them."""
    return with_conversions([dataclasses.replace(b, dtype=d) for b, d in zip(BLOCKS, dtypes, strict=True)])


MIXED = [
    in_dtypes("float32", "int8", "int8", "float32", "float32"),
    in_dtypes("int8", "float32", "int8", "int8", "float32"),
    in_dtypes("float32", "bfloat16", "int8", "bfloat16", "int8"),
]


@pytest.mark.parametrize("blocks", MIXED, ids=lambda blocks: "-".join(b.dtype for b in computing(blocks)))
def test_only_blocks_in_int8_get_grids_and_shifts(blocks: tuple[BlockConfig, ...]) -> None:
    found = calibrated_blocks(blocks, PARAMETERS, IMAGES, "float32")
    for block, own, given in zip(computing(blocks), found, PARAMETERS, strict=True):
        new = own.keys() - given.keys()
        assert (GRIDS in new) == (block.dtype == "int8")
        assert block.dtype == "int8" or not new
    for exact in (False, True):
        logits = emulated_logits(blocks, found, IMAGES, exact=exact)
        assert ((logits - LOGITS) ** 2).sum() / (LOGITS**2).sum() < 0.02


def test_blocks_that_say_int8_are_calibrated_like_a_network_in_int8(
    calibrated: list[Mapping[str, Float32Array]],
) -> None:
    found = calibrated_blocks(in_dtypes(*["int8"] * len(BLOCKS)), PARAMETERS, IMAGES, "float32")
    for mine, theirs in zip(found, calibrated, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])


@pytest.mark.parametrize("blocks", [BLOCKS, *MIXED], ids=["int8", "inside", "around", "bfloat16"])
def test_corrected_biases_make_no_network_worse(
    blocks: tuple[BlockConfig, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = "int8" if blocks is BLOCKS else "float32"
    corrected = calibrated_blocks(blocks, PARAMETERS, IMAGES, dtype)
    monkeypatch.setattr(module, "_corrected", lambda _blocks, parameters, _images, _dtype: parameters)
    plain = calibrated_blocks(blocks, PARAMETERS, IMAGES, dtype)
    errors = [((emulated_logits(blocks, found, IMAGES, dtype) - LOGITS) ** 2).sum() for found in (corrected, plain)]
    assert errors[0] <= errors[1] * (1 + 1e-6)


def test_a_network_without_int8_is_left_as_it_is() -> None:
    found = calibrated_blocks(in_dtypes("float32", *["bfloat16"] * 3, "float32"), PARAMETERS, IMAGES, "float32")
    assert [own.keys() for own in found] == [own.keys() for own in PARAMETERS]
