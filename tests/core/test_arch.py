"""chanas/core/arch.py: the search space, its members and their shapes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from strategies import choices_of_dtypes, mixed_spaces_and_architectures, spaces, spaces_and_architectures

from chanas.core.arch import NUM_FIXED, Architecture, SearchSpace, SubSpace
from chanas.core.blocks import BlockConfig, computing, conversions, make_divisible
from chanas.errors import ArchitectureError, ConfigError

MBV3 = SearchSpace.load("mbv3")
PRESETS = ("mbv3", "mbv3-32")


def uniform(resolution: int, width: float, kernel_size: int, expand_ratio: int, depth: int) -> Architecture:
    """The architecture of five stages whose blocks are all the same."""
    return Architecture(resolution, width, (((kernel_size, expand_ratio),) * depth,) * 5)


# ---- shapes ---------------------------------------------------------------------------------------------------------
@given(st.floats(1, 10_000), st.sampled_from([4, 8, 16]))
def test_make_divisible_gives_a_multiple_near_the_value(value: float, divisor: int) -> None:
    channels = make_divisible(value, divisor)
    assert channels % divisor == 0
    assert channels >= max(divisor, 0.9 * value)
    assert abs(channels - value) <= max(divisor, 0.1 * value)


def test_mbv3_has_the_widths_strides_and_activations_of_the_mobilenet_v3_space() -> None:
    stem, first, *body, head, classifier = uniform(224, 1.0, 3, 6, 2).blocks(MBV3)

    assert stem == BlockConfig("stem", 224, 3, 0, 16, kernel_size=3, stride=2, activation="hswish")
    assert first == BlockConfig("mbconv", 112, 16, 16, 16, kernel_size=3, activation="relu", residual=True)
    openers, followers = body[::2], body[1::2]
    assert [b.input_size for b in openers] == [112, 56, 28, 14, 14]
    assert [b.output_size for b in openers] == [56, 28, 14, 14, 7]
    assert [b.stride for b in openers] == [2, 2, 2, 1, 2]
    assert [b.in_channels for b in openers] == [16, 24, 40, 80, 112]
    assert [b.out_channels for b in openers] == [24, 40, 80, 112, 160]
    assert [b.mid_channels for b in openers] == [96, 144, 240, 480, 672]
    assert [b.activation for b in openers] == ["relu", "relu", "hswish", "hswish", "hswish"]
    assert [b.use_se for b in openers] == [False, True, False, True, True]
    assert [b.se_channels for b in openers] == [0, 40, 0, 120, 168]
    assert [b.residual for b in openers] == [False] * 5
    assert all(b.stride == 1 and b.residual and b.in_channels == b.out_channels for b in followers)
    assert head == BlockConfig("head", 7, 160, 0, 960, activation="hswish")
    assert classifier == BlockConfig("classifier", 1, 960, 1280, 1000, activation="hswish")


@pytest.mark.parametrize(
    ("architecture", "num_macs", "num_params"),
    [
        (uniform(224, 1.0, 7, 6, 4), 566_170_656, 7_664_760),
        (uniform(224, 1.0, 3, 3, 2), 121_278_672, 3_410_792),
        (uniform(160, 1.0, 3, 3, 2), 63_240_528, 3_410_792),
        (uniform(224, 1.3, 7, 6, 4), 932_329_664, 12_259_944),
    ],
    ids=lambda value: value.key[:9] if isinstance(value, Architecture) else None,
)
def test_mbv3_corners_have_their_macs_and_parameters(
    architecture: Architecture, num_macs: int, num_params: int
) -> None:
    assert architecture.num_macs(MBV3) == num_macs
    assert architecture.num_params(MBV3) == num_params


@given(spaces_and_architectures())
def test_the_blocks_of_an_architecture_fit_together(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    blocks = architecture.blocks(space, num_classes=7)

    assert [b.kind for b in blocks] == ["stem"] + ["mbconv"] * (1 + sum(architecture.depths)) + ["head", "classifier"]
    assert blocks[0].input_size == architecture.resolution
    assert blocks[-1].out_channels == 7
    for before, after in itertools.pairwise(blocks):
        assert after.in_channels == before.out_channels
        assert after.input_size == before.output_size
    for block in blocks[:-1]:
        assert not block.residual or (block.stride == 1 and block.in_channels == block.out_channels)


@given(spaces_and_architectures())
def test_costs_are_sums_over_blocks(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    blocks = architecture.blocks(space, 10)
    assert architecture.num_macs(space, 10) == sum(b.num_macs for b in blocks)
    assert architecture.num_params(space, 10) == sum(b.num_params for b in blocks)


@given(spaces_and_architectures())
def test_all_blocks_has_every_block_of_every_member(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    assert set(architecture.blocks(space, 10)) <= set(space.all_blocks(10))
    assert set(architecture.blocks(space, 10)) <= set(space.all_blocks(10, (architecture.sub_space,)))


@given(spaces)
def test_block_keys_are_unique_and_blocks_survive_json(space: SearchSpace) -> None:
    blocks = space.all_blocks(10)
    assert len({b.key for b in blocks}) == len(blocks)
    assert [BlockConfig.from_json(json.loads(json.dumps(b.to_json()))) for b in blocks] == list(blocks)


def test_a_block_key_is_readable() -> None:
    block = MBV3.block(SubSpace(224, 1.0), stage=1, position=1, kernel_size=5, expand_ratio=4)
    assert block.key == "mbconv-28px-40x160x40-k5s1-relu-se-res"


# ---- members --------------------------------------------------------------------------------------------------------
@given(spaces_and_architectures())
def test_keys_and_json_give_the_same_architecture_back(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    assert Architecture.from_key(architecture.key) == architecture
    assert Architecture.from_json(json.loads(json.dumps(architecture.to_json()))) == architecture
    assert space.contains(Architecture.from_key(architecture.key))


def test_a_key_is_readable() -> None:
    architecture = Architecture(32, 1.25, (((3, 6), (5, 3)), ((3, 3),)))
    assert architecture.key == "r32-w1.25-k3e6.k5e3-k3e3"
    assert architecture.depths == (2, 1)
    assert architecture.sub_space.key == "r32-w1.25"


def test_widths_that_differ_in_the_ninth_digit_have_different_keys() -> None:
    keys = {Architecture(32, width, (((3, 3),),)).key for width in (1.0, 1.00000001, 1.00000002)}
    assert len(keys) == 3


@pytest.mark.parametrize(
    "key", ["", "r32", "r32-w1", "r32-w1-k3", "r32-w1-k3e3-", "r32-w1.-k3e3", "R32-w1-k3e3", "r-1-w1-k3e3"]
)
def test_a_text_that_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ArchitectureError, match="expected an architecture key such as"):
        Architecture.from_key(key)


@pytest.mark.parametrize("data", [{}, {"key": 3}, [], "r32-w1-k3e3"])
def test_json_without_a_key_is_refused(data: Any) -> None:
    with pytest.raises(ArchitectureError, match="expected an architecture"):
        Architecture.from_json(data)


def test_json_of_another_schema_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="schema 1, got 99"):
        Architecture.from_json({"schema": 99, "key": "r32-w1-k3e3"})


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("r20-w1-k3e3-k3e3", "resolution 20; expected one of"),
        ("r16-w2-k3e3-k3e3", "width multiplier 2; expected one of"),
        ("r16-w1-k3e3", "1 stages; expected 2"),
        ("r16-w1-k3e3.k3e3.k3e3-k3e3", "depth 3 of stage 0"),
        ("r16-w1-k3e3-k7e3", "kernel size 7 in stage 1"),
        ("r16-w1-k3e6-k3e3", "expand ratio 6 in stage 0"),
    ],
)
def test_a_stranger_is_told_which_choice_is_not_in_the_space(tiny_space: SearchSpace, key: str, fault: str) -> None:
    stranger = Architecture.from_key(key)
    assert not tiny_space.contains(stranger)
    with pytest.raises(ArchitectureError, match=fault):
        stranger.blocks(tiny_space)


# ---- several dtypes -------------------------------------------------------------------------------------------------
SMALL = Architecture.from_key("r16-w1-k3e3-k5e2")


@given(mixed_spaces_and_architectures())
def test_keys_and_json_have_the_dtypes_of_blocks(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    assert Architecture.from_key(architecture.key) == architecture
    assert Architecture.from_json(json.loads(json.dumps(architecture.to_json()))) == architecture
    assert space.contains(architecture)
    assert ("_" in architecture.key) == bool(architecture.dtypes)


def test_a_key_has_a_letter_for_each_block() -> None:
    mixed = dataclasses.replace(SMALL, dtypes=("float32", "int8", "bfloat16", "int8", "int8", "float32"))
    assert mixed.key == "r16-w1-k3e3-k5e2_fibiif"
    assert mixed.plain == SMALL
    assert SMALL.plain == SMALL


@pytest.mark.parametrize("letters", ["_", "_fx", "_F", "_ff_ii", "-ffiiff", "_fi ii", "ffiiff"])
def test_a_text_with_other_letters_is_no_key(letters: str) -> None:
    with pytest.raises(ArchitectureError, match="expected an architecture key such as"):
        Architecture.from_key(SMALL.key + letters)


@pytest.mark.parametrize(
    ("letters", "fault"),
    [
        ("_fiiif", "5 dtypes of blocks; expected 6"),
        ("_fiiiiif", "7 dtypes of blocks; expected 6"),
        ("_fiibif", "a block in bfloat16; expected one of .'float32', 'int8'."),
    ],
)
def test_a_stranger_is_told_which_dtypes_are_not_in_the_space(
    tiny_space: SearchSpace, letters: str, fault: str
) -> None:
    space = tiny_space.with_dtypes(("float32", "int8"))
    stranger = Architecture.from_key(SMALL.key + letters)
    assert not space.contains(stranger)
    with pytest.raises(ArchitectureError, match=fault):
        stranger.blocks(space)


def test_an_unknown_dtype_is_refused(tiny_space: SearchSpace) -> None:
    with pytest.raises(ArchitectureError, match="a block in float16; expected one of"):
        tiny_space.check(dataclasses.replace(SMALL, dtypes=("float16",) * 6))


@pytest.mark.parametrize(
    "dtypes",
    [
        ("float32",),
        ("int8",),
        ("int8", "float32"),
        ("float32", "float32"),
        ("float32", "int8", "int8"),
        ("float32", "float16"),
    ],
)
def test_a_space_has_float32_and_other_dtypes_once_each(tiny_space: SearchSpace, dtypes: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="expected dtypes of blocks among float32, bfloat16, int8, float32 first"):
        tiny_space.with_dtypes(dtypes)


@given(mixed_spaces_and_architectures())
def test_blocks_that_convert_stand_exactly_where_neighbours_differ(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    dtypes = architecture.dtypes or ("",) * (sum(architecture.depths) + NUM_FIXED)
    blocks = architecture.blocks(space, 7)
    plain = architecture.plain.blocks(space, 7)
    assert computing(blocks) == tuple(dataclasses.replace(b, dtype=d) for b, d in zip(plain, dtypes, strict=True))

    parts: list[list[BlockConfig]] = [[]]
    for block in blocks:
        parts[-1].append(block)
        if not block.converts:
            parts.append([])
    assert parts.pop() == []
    for (*_, before), (*between, after) in itertools.pairwise(parts):
        differ = before.output_dtype != after.input_dtype
        decoded = [("decode", before.dtype)] * (differ and before.output_dtype != "float32")
        encoded = [("encode", after.dtype)] * (differ and after.input_dtype != "float32")
        assert [(b.kind, b.dtype) for b in between] == decoded + encoded


@given(mixed_spaces_and_architectures())
def test_a_block_reads_the_map_that_the_one_before_writes(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    blocks = architecture.blocks(space, 7)
    assert blocks[0].input_dtype == "float32" or not architecture.dtypes
    for before, after in itertools.pairwise(blocks):
        assert before.output_dtype == after.input_dtype
        assert (after.in_channels, after.input_size) == (before.out_channels, before.output_size)
    for block in blocks:
        if block.converts:
            assert (block.num_macs, block.num_params) == (0, 0)
            assert {block.input_dtype, block.output_dtype} == {"float32", block.dtype}
    assert architecture.num_macs(space, 7) == architecture.plain.num_macs(space, 7)
    assert architecture.num_params(space, 7) == architecture.plain.num_params(space, 7)


@given(mixed_spaces_and_architectures())
def test_every_block_has_a_name(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    blocks, names = architecture.blocks(space, 7), architecture.block_names()
    words, short = {"encode": "to", "decode": "from"}, {"": "", "float32": "", "bfloat16": "bf16", "int8": "int8"}
    left = iter(architecture.plain.block_names())
    for name, block in zip(names, blocks, strict=True):
        plain = words[block.kind] if block.converts else next(left)
        assert name.split() == [*plain.split(), *short[block.dtype].split()]
    assert [(b.kind, b.dtype) for b in architecture.outline()] == [(b.kind, b.dtype) for b in blocks]


def test_names_say_where_a_network_converts() -> None:
    names = Architecture.from_key("r16-w1-k3e3-k5e2_fibiif").block_names()
    assert names == (
        "stem",
        "to int8",
        "first block  int8",
        "from int8",
        "to bf16",
        "stage 1.1  k3 e3  bf16",
        "from bf16",
        "to int8",
        "stage 2.1  k5 e2  int8",
        "head  int8",
        "classifier",
    )


def test_between_two_dtypes_beside_float32_a_map_is_float32() -> None:
    there, back = conversions(7, 24, "int8", "bfloat16")
    assert (there.kind, there.dtype) == ("decode", "int8")
    assert (back.kind, back.dtype) == ("encode", "bfloat16")
    assert there.key == "decode-7px-24-int8"
    assert conversions(7, 24, "int8", "int8") == ()


@given(mixed_spaces_and_architectures())
def test_all_conversions_has_every_one_of_every_member(member: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = member
    found = {b for b in architecture.blocks(space, 7) if b.converts}
    for dtype in space.dtypes:
        known = space.all_conversions(dtype)
        assert {b for b in found if b.dtype == dtype} <= set(space.all_conversions(dtype, (architecture.sub_space,)))
        assert {b for b in found if b.dtype == dtype} <= set(known)
        assert len({b.key for b in known}) == len(known)
        assert bool(known) == (dtype != "float32")
        assert [BlockConfig.from_json(json.loads(json.dumps(b.to_json()))) for b in known] == list(known)


@given(spaces, choices_of_dtypes)
def test_what_is_stored_of_a_space_knows_no_dtypes(space: SearchSpace, dtypes: tuple[str, ...]) -> None:
    mixed = space.with_dtypes(dtypes)
    assert mixed.dtypes == dtypes
    assert mixed.to_json() == space.to_json()
    assert mixed.digest == space.digest
    assert SearchSpace.from_json(mixed.to_json()) == space
    assert mixed.all_blocks(7) == space.all_blocks(7)


def test_a_file_of_a_space_has_no_dtypes(tiny_space: SearchSpace) -> None:
    with pytest.raises(ConfigError, match="dtypes"):
        SearchSpace.from_json({**tiny_space.to_json(), "dtypes": ["float32", "int8"]})


def test_a_block_without_a_dtype_is_stored_as_ever() -> None:
    block = MBV3.block(SubSpace(224, 1.0), stage=1, position=1, kernel_size=5, expand_ratio=4)
    assert "dtype" not in block.to_json()
    own = dataclasses.replace(block, dtype="int8")
    assert BlockConfig.from_json(json.loads(json.dumps(own.to_json()))) == own
    assert own.key == block.key


# ---- the space ------------------------------------------------------------------------------------------------------
def test_num_architectures_is_what_listing_them_gives(tiny_space: SearchSpace) -> None:
    block_choices = list(itertools.product(tiny_space.kernel_sizes, tiny_space.expand_ratios))
    stage_choices = [s for depth in tiny_space.depths for s in itertools.product(block_choices, repeat=depth)]
    members = {
        Architecture(sub_space.resolution, sub_space.width_multiplier, stages)
        for sub_space in tiny_space.sub_spaces
        for stages in itertools.product(stage_choices, repeat=tiny_space.num_stages)
    }
    assert all(tiny_space.contains(a) for a in members)
    assert len({a.key for a in members}) == len(members) == tiny_space.num_architectures


def test_mbv3_has_twenty_sub_spaces_of_seven_thousand_to_the_fifth_architectures() -> None:
    assert len(MBV3.sub_spaces) == 20
    assert MBV3.num_architectures == 20 * (9**2 + 9**3 + 9**4) ** 5
    assert math.log10(MBV3.num_architectures) == pytest.approx(math.log10(4.35e20), abs=1e-3)


@given(spaces)
def test_smallest_and_largest_are_members_and_bound_the_macs(space: SearchSpace) -> None:
    assert space.contains(space.smallest)
    assert space.contains(space.largest)
    assert space.smallest.num_macs(space, 10) <= space.largest.num_macs(space, 10)


@given(spaces)
def test_a_space_survives_json_and_keeps_its_digest(space: SearchSpace) -> None:
    copy = SearchSpace.from_json(json.loads(json.dumps(space.to_json())))
    assert copy == space
    assert copy.digest == space.digest


def test_two_spaces_of_one_name_have_different_digests(tiny_space: SearchSpace) -> None:
    assert dataclasses.replace(tiny_space, head_width=40).digest != tiny_space.digest


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_loaded_by_name_or_by_path(name: str, tmp_path: Path) -> None:
    space = SearchSpace.load(name)
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump(space.to_json()))
    assert space.name == name
    assert SearchSpace.load(copy) == space


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(SearchSpace) if f.name != "dtypes"])
def test_a_missing_key_is_named(tiny_space: SearchSpace, field: str) -> None:
    data = tiny_space.to_json()
    del data[field]
    with pytest.raises(ConfigError, match=f"search space lacks {field}"):
        SearchSpace.from_json(data)


def test_a_key_with_dtypes_is_refused_where_they_are_of_no_use() -> None:
    plain = "r32-w1-k3e6.k5e3-k3e3-k5e6"
    assert Architecture.from_plain_key(plain) == Architecture.from_key(plain)
    with pytest.raises(
        ArchitectureError, match=f"expected an architecture without dtypes of blocks, such as {plain}, "
    ):
        Architecture.from_plain_key(f"{plain}_ffiiiiff")
