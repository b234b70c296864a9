"""chanas/export/c_sources.py: whatever a network is called, takes and gives, its C files stay C."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.export import c_sources

texts = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("digits", "digits"),
        ("Net-v2.1", "net_v2_1"),
        ("2024", "net_2024"),
        ("_x_", "x"),
        ("räder", "r_der"),
        ("日本", "net"),
        ("", "net"),
        ("Clean", "net_clean"),
        ("makefile", "net_makefile"),
        ("a__b", "a_b"),
        ("x" * 300, "x" * 63),
        ("9" * 300, "net_" + "9" * 59),
    ],
)
def test_a_name_becomes_one_that_c_takes(text: str, name: str) -> None:
    assert c_sources.identifier(text) == name


@pytest.mark.parametrize(
    ("text", "taken", "name"),
    [
        ("x", (), "x"),
        ("input.1", (), "input_1"),
        ("x", ("x",), "x_2"),
        ("X", ("x", "x_2"), "x_3"),
    ],
)
def test_a_name_is_told_from_others(text: str, taken: tuple[str, ...], name: str) -> None:
    assert c_sources.distinct(text, taken) == name


@given(texts)
def test_a_string_literal_means_the_text(text: str) -> None:
    literal = c_sources.string(text)
    assert literal.isascii()
    assert "?" not in literal  # trigraphs
    assert ast.literal_eval(f"b{literal}").decode() == text  # octal escapes are the same in Python


@given(texts)
def test_a_comment_neither_ends_nor_begins_one(text: str) -> None:
    comment = c_sources.comment(f"/*/{text}*/*")
    assert "*/" not in comment
    assert "/*" not in comment
    assert "\n" not in comment


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_number_is_the_same_float(value: float) -> None:
    literal = c_sources.number(value)
    assert literal.endswith("f")
    assert "." in literal or "e" in literal  # `1f` is no number
    assert np.float32(float(literal[:-1])) == np.float32(value)


def test_values_are_put_in_once() -> None:
    values = {
        "NAME": "@MACRO@",
        "MACRO": "M",
        "COMPILER": "cc -DX=@NAME@",
        "BUILD_ARGUMENTS": "main.c",
    }
    text = c_sources.filled("Makefile", values)
    assert "CC = cc -DX=@NAME@\n" in text
    assert "lib@MACRO@.a" in text


def test_a_placeholder_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="COMPILER"):
        c_sources.filled("Makefile", {"NAME": "x", "BUILD_ARGUMENTS": ""})
