"""Inputs and outputs of a network, as its C functions and the examples in other languages have them: in the header
their names behind `in_` and `out_`, elsewhere numbers; whatever a network calls them, they hide no word, type or macro.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from chanas.export import c_sources

TYPES = {
    "float32": ("float", "f32"),
    "float64": ("double", "f64"),
    "float16": ("uint16_t", "u16"),
    "int64": ("int64_t", "i64"),
    "int32": ("int32_t", "i32"),
    "int16": ("int16_t", "i16"),
    "int8": ("int8_t", "i8"),
    "uint8": ("uint8_t", "u8"),
    "bool": ("uint8_t", "u8"),
}
"""The types in C and in Rust."""
_REMARKS = {"bool": ", 0 or 1", "float16": ", bits of numbers of 16 bits"}


@dataclass(frozen=True)
class Tensor:
    """An input or an output.

    parameter  of the C function
    origin     what the network calls it
    name       the same as C takes it
    """

    parameter: str
    origin: str
    shape: tuple[int, ...]
    dtype: str
    name: str = ""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def c_type(self) -> str:
        return TYPES[self.dtype][0]

    @property
    def rust_type(self) -> str:
        return TYPES[self.dtype][1]

    def describe(self) -> str:
        """`in_x   float [1][3][16][16]`"""
        extents = "".join(f"[{extent}]" for extent in self.shape) or "[1]"
        named = "" if self.origin == self.name else f", the network's {c_sources.comment(self.origin)}"
        return f"      {self.parameter}   {self.c_type} {extents}{_REMARKS.get(self.dtype, '')}{named}"

    def size_macro(self, network: str) -> str:
        """The name of its size. Names of several words are in small letters: `X_A_B_SIZE` is that of tensor `b` of
        network `x_a`, and `X_a_b_SIZE` that of tensor `a_b` of network `x`."""
        return f"{network.upper()}_{self.name if '_' in self.name else self.name.upper()}_SIZE"


def signature(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, str]:
    """Values of the placeholders that stand for parameters, in C, C++ and Rust."""
    numbered = [(f"in{i}", t) for i, t in enumerate(inputs)] + [(f"out{i}", t) for i, t in enumerate(outputs)]

    def is_input(name: str) -> bool:
        return name.startswith("in")

    def listed(text: Callable[[str, Tensor], str], between: str = ", ") -> str:
        return between.join(text(name, t) for name, t in numbered)

    def of_inputs(text: Callable[[str, Tensor], str]) -> str:
        return "\n".join(text(name, t) for name, t in numbered if is_input(name))

    def of_outputs(text: Callable[[str, Tensor], str], between: str = "\n") -> str:
        return between.join(text(name, t) for name, t in numbered if not is_input(name))

    def c_parameter(name: str, t: Tensor, named: str) -> str:
        return f"{'const ' if is_input(name) else ''}{t.c_type} *{named}"

    def rust_pointer(name: str) -> str:
        return f"t.{name}.{'as_ptr' if is_input(name) else 'as_mut_ptr'}()"

    return {
        "PARAMETERS": listed(lambda n, t: c_parameter(n, t, t.parameter)),
        "NUMBERED_PARAMETERS": listed(lambda n, t: c_parameter(n, t, n)),
        "ANY_IS_NULL": listed(lambda n, t: f"{n} == NULL", " || "),
        "POINTERS": listed(lambda n, t: n),
        "NEXT_POINTERS": listed(lambda n, t: f"{n} + i * {t.size}"),
        "CPP_MEMBERS": listed(
            lambda n, t: f"    std::vector<{t.c_type}> {n} = std::vector<{t.c_type}>(batch * {t.size});", "\n"
        ),
        "CPP_FILLS": of_inputs(lambda n, t: f"        fill(t.{n}, seed++);"),
        "CPP_CLEARS": of_outputs(lambda n, t: f"        t.{n}.assign(t.{n}.size(), 42);"),
        "CPP_DATA": listed(lambda n, t: f"t.{n}.data()"),
        "CPP_NEXT": listed(lambda n, t: f"t.{n}.data() + i * {t.size}"),
        "CPP_ALIKE": of_outputs(lambda n, t: f"alike(t.{n}, expected.{n})", " && "),
        "RUST_PARAMETERS": listed(lambda n, t: f"{n}: *{'const' if is_input(n) else 'mut'} {t.rust_type}"),
        "RUST_MEMBERS": listed(lambda n, t: f"    {n}: Vec<{t.rust_type}>,", "\n"),
        "RUST_FILLS": "\n".join(
            (
                of_inputs(
                    lambda n, t: f"        {n}: (0..BATCH * {t.size}).map(|i| bit(seed, i) as {t.rust_type}).collect(),"
                ),
                of_outputs(lambda n, t: f"        {n}: vec![0 as {t.rust_type}; BATCH * {t.size}],"),
            )
        ),
        "RUST_CLEARS": of_outputs(
            lambda n, t: f"                    t.{n} = vec![42 as {t.rust_type}; BATCH * {t.size}];"
        ),
        "RUST_DATA": listed(lambda n, t: rust_pointer(n)),
        "RUST_NEXT": listed(lambda n, t: f"{rust_pointer(n)}.add(i * {t.size})"),
        "RUST_ALIKE": of_outputs(lambda n, t: f"t.{n} == expected.{n}", " && "),
    }
