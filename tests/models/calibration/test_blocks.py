"""chanas/models/calibration/blocks.py: a searched network in int8 computes about what it does in float32."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import chanas.models.calibration.blocks as module
from chanas.compiler.cases import random_network
from chanas.compiler.emulation import Parameters, emulated_logits
from chanas.core.arch import BlockConfig
from chanas.errors import CheckpointError
from chanas.models.calibration.blocks import calibrated_blocks
from chanas.network.folding import GRIDS, SHIFT, quantise_operators
from chanas.operators.precision import Array

BLOCKS = (
    BlockConfig("stem", 16, 3, 0, 16, 3, 2, "hswish"),
    BlockConfig("mbconv", 8, 16, 48, 16, 3, 1, "relu", residual=True),
    BlockConfig("mbconv", 8, 16, 64, 24, 5, 2, "hswish", use_se=True),
    BlockConfig("head", 4, 24, 0, 40, activation="hswish"),
    BlockConfig("classifier", 1, 40, 32, 10, activation="hswish"),
)
PARAMETERS, IMAGES, LOGITS = random_network(BLOCKS, seed=0, batch=24)


@pytest.fixture(scope="module")
def calibrated() -> list[dict[str, Array]]:
    return calibrated_blocks(BLOCKS, PARAMETERS, IMAGES, "int8")


def error(parameters: list[dict[str, Array]]) -> float:
    found = emulated_logits(BLOCKS, parameters, IMAGES, "int8", exact=True)
    return float(((found - LOGITS) ** 2).sum() / (LOGITS**2).sum())


def test_logits_are_near_those_of_float32(calibrated: list[dict[str, Array]]) -> None:
    assert error(calibrated) < 0.02


def test_fewer_numbers_lose_more(calibrated: list[dict[str, Array]]) -> None:
    """A grid sixteen times as coarse, of one block."""
    coarse = [dict(own) for own in calibrated]
    for number in (1, 2):
        coarse[number][GRIDS] = calibrated[number][GRIDS] * np.array([16.0, 1.0], np.float32)
        coarse[number][GRIDS][:, 1] //= 16
    coarse[2][GRIDS][0] = coarse[1][GRIDS][-1]
    assert error(coarse) > 4 * error(calibrated)


def test_a_block_reads_the_numbers_that_the_one_before_writes(calibrated: list[dict[str, Array]]) -> None:
    for before, after in itertools.pairwise(calibrated):
        np.testing.assert_array_equal(before[GRIDS][-1], after[GRIDS][0])


def test_weights_stay_as_they_are(calibrated: list[dict[str, Array]]) -> None:
    for own, found in zip(PARAMETERS, calibrated, strict=True):
        assert found.keys() - own.keys() <= {GRIDS, *(SHIFT.format(i) for i in range(1, 7))}
        for name, value in own.items():
            np.testing.assert_array_equal(found[name], value)


def test_corrected_biases_are_taken_where_they_help_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(_blocks: object, parameters: Parameters, _images: Array, _dtype: str) -> Parameters:
        shift = np.full(16, 10.0, np.float32)
        return [{**own, SHIFT.format(1): shift} if i == 0 else own for i, own in enumerate(parameters)]

    monkeypatch.setattr(module, "_corrected", worse)
    found = calibrated_blocks(BLOCKS, PARAMETERS, IMAGES, "int8")
    assert not any(SHIFT.format(1) in own for own in found)


def test_a_shift_is_added_to_a_bias(calibrated: list[dict[str, Array]]) -> None:
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
