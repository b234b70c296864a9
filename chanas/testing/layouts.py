"""The contract of layouts."""

from __future__ import annotations

import numpy as np
import pytest

from chanas.core.arrays import Float32Array
from chanas.operators.layout import Layout
from chanas.operators.precision import BFLOAT16, FLOAT16, FLOAT32, Precision
from chanas.operators.workload import Workload

WORKLOADS = [
    Workload("conv", 9, 3, 24, 3, 2, "hswish"),
    Workload("blockconv", 7, 20, 24, 5, 2, "relu"),
    Workload("blockconv", 7, 32, 64, 3, groups=2),
    Workload("groupconv", 7, 40, 40, 3, 2, "relu", groups=5),
    Workload("winograd", 7, 20, 24, 5, 2, "relu"),
    Workload("winograd2", 7, 20, 24, 5, 1, "relu"),
    Workload("pointwise", 7, 21, 24, scaled=True, residual=True, prologue="relu", epilogue="hsigmoid"),
    Workload("depthwise", 7, 24, 24, 5, 2, "relu", batch=3),
    Workload("pool", 7, 24, 24),
    Workload("upconv", 7, 20, 24, 3, 2, "relu"),
]


def numbered(*shape: int) -> Float32Array:
    """1, 2, 3, …, so that every element can be told from any other and none is zero."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def weight_of(workload: Workload) -> Float32Array:
    """The numbered weight of an operator, as PyTorch has it."""
    rows, columns = workload.axes
    return numbered(workload.out_channels, workload.channels_per_group, rows.kernel, columns.kernel)


class LayoutContract:
    """Tests that every `Layout` passes. Inherit it, and name the layout."""

    layout: Layout
    workloads = WORKLOADS
    """Operators whose parameters it packs."""

    @pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16, FLOAT16], ids=lambda p: p.dtype)
    @pytest.mark.parametrize(("batch", "channels", "size"), [(1, 1, 1), (1, 24, 4), (3, 5, 4), (2, 40, 2)])
    def test_unpacking_is_the_inverse_of_packing(
        self, precision: Precision, batch: int, channels: int, size: int
    ) -> None:
        values = precision.rounded(numbered(batch, channels, size, size))
        stored = self.layout.pack(values, precision)
        assert stored.shape == self.layout.shape(channels, size**2, batch)
        assert str(stored.dtype) == precision.storage
        back = self.layout.unpack(stored, channels, size**2, batch, precision)
        np.testing.assert_array_equal(back, values.reshape(batch, channels, -1))

    def test_packed_parameters_have_the_shapes_that_kernels_declare(self) -> None:
        for workload in self.workloads:
            bias = numbered(workload.out_channels)
            parts = self.layout.pack_parameters(workload, weight_of(workload), bias) if workload.has_weights else []
            declared = self.layout.parameters(workload)
            assert [(a.shape, a.dtype) for a in declared] == [(p.shape, str(p.dtype)) for p in parts], workload.key
            assert [a.name for a in declared] == ["weights", "bias"][: len(parts)]

    def test_the_parameters_of_a_block_are_those_of_its_operators_in_order(self) -> None:
        parts = [
            part
            for workload in self.workloads[:2]
            for part in self.layout.pack_parameters(workload, weight_of(workload), numbered(workload.out_channels))
        ]
        together = self.layout.together(parts)
        flat = np.concatenate([part.ravel() for part in parts])
        np.testing.assert_array_equal(np.concatenate([part.ravel() for part in together]), flat)
