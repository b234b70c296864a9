"""chanas/core/latency.py: a table comes back as it went, sums what its rows say, and is refused where it does not
hold."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import mixed_spaces_and_genomes, seeds, spaces_and_genomes

from chanas.core import latency
from chanas.core.arch import SearchSpace
from chanas.core.genome import Genomes, decode, sample
from chanas.core.latency import Calibration, LatencyLUT, LUTHeader, LUTRow
from chanas.core.target import HardwareTarget, tvm_version
from chanas.core.task import Task
from chanas.devices.host import load_target
from chanas.errors import LUTError

HOST = load_target("cpu")
CLASSES = 10

positive = st.floats(1e-9, 10.0)
points = st.lists(st.integers(0, 512), max_size=9).map(tuple)
texts = st.text(max_size=12)
targets = st.builds(
    HardwareTarget,
    name=texts,
    kind=st.just("llvm"),
    num_threads=st.integers(1, 64),
    vector_lanes=st.sampled_from([4, 8, 16]),
    num_vector_registers=st.sampled_from([16, 32]),
    l1_bytes=st.integers(1, 1 << 40),
    l2_bytes=st.integers(1, 1 << 40),
    l3_bytes=st.integers(1, 1 << 40),
    device=texts,
    fingerprint=texts,
)
headers = st.builds(LUTHeader, targets, texts, texts, texts, created=texts, seed=st.integers(0, 100))
rows = st.builds(
    LUTRow,
    positive,
    positive,
    st.integers(0, 100),
    st.lists(st.tuples(texts, points), max_size=4).map(tuple),
    texts,
)
finite = st.floats(0.0, 10.0)
calibrations = st.none() | st.builds(
    Calibration, finite, finite, finite, st.integers(6, 100), finite, finite, finite, finite
)
tables = st.builds(LatencyLUT, headers, st.dictionaries(texts, rows, max_size=5), calibrations)


def random_table(space: SearchSpace, seed: int = 0, num_classes: int = CLASSES) -> LatencyLUT:
    """A row of random seconds for every block."""
    rng = np.random.default_rng(seed)
    header = LUTHeader(HOST, tvm_version(), space.name, space.digest)
    blocks = space.all_blocks(num_classes)
    return LatencyLUT(header, {b.key: LUTRow(1e-6 + rng.random() * 1e-3, 1e-7, 4, ()) for b in blocks})


@pytest.fixture
def table(tiny_space: SearchSpace) -> LatencyLUT:
    return random_table(tiny_space)


# ---- files ----------------------------------------------------------------------------------------------------------
@settings(max_examples=50)
@given(tables)
def test_a_table_comes_back_as_it_went(tmp_path_factory: pytest.TempPathFactory, lut: LatencyLUT) -> None:
    path = tmp_path_factory.mktemp("luts") / "cpu.json"
    lut.save(path)
    assert LatencyLUT.load(path) == lut


def test_a_saved_table_is_stable_text(table: LatencyLUT, tmp_path: Path) -> None:
    shuffled = LatencyLUT(table.header, dict(reversed(table.rows.items())))
    table.save(tmp_path / "a.json")
    shuffled.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def row_of(data: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = next(iter(data["rows"].values()))
    return row


Damage = Callable[[dict[str, Any]], Any]
DAMAGES: dict[str, Damage] = {
    "a list": lambda data: [data],
    "a row with a field too many": lambda data: {**data, "rows": {"b": {**row_of(data), "mean_s": 1.0}}},
    "seconds below zero": lambda data: {**data, "rows": {"b": {**row_of(data), "median_s": -1e-6}}},
    "half a calibration": lambda data: {**data, "calibration": {"scale": 1.0}},
}


def test_predicted_rows_are_told_apart_and_kept_so(tiny_space: SearchSpace, table: LatencyLUT, tmp_path: Path) -> None:
    blocks = tiny_space.all_blocks(CLASSES)
    assert table.predicted(blocks) == []
    table.rows[blocks[3].key] = dataclasses.replace(table.rows[blocks[3].key], predicted_error=0.07)
    table.header = dataclasses.replace(table.header, adapted_from=({"target": "cpu", "num_rows": 9},))
    table.save(tmp_path / "table.json")
    again = LatencyLUT.load(tmp_path / "table.json")
    assert again == table
    assert again.predicted(blocks) == [blocks[3]]


def test_only_tables_with_predicted_rows_are_of_the_newer_schema(table: LatencyLUT, tmp_path: Path) -> None:
    """So that those that were measured stay what they were, and older readers refuse the others in one line."""
    path = tmp_path / "table.json"
    table.save(path)
    measured = json.loads(path.read_text())
    assert measured["schema"] == 1
    assert not any("predicted_error" in row for row in measured["rows"].values())
    assert "adapted_from" not in measured["header"]
    key = next(iter(table.rows))
    table.rows[key] = dataclasses.replace(table.rows[key], predicted_error=0.07)
    table.save(path)
    assert json.loads(path.read_text())["schema"] == 2


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_json_that_is_no_table_is_an_error(table: LatencyLUT, tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "cpu.json"
    table.save(path)
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(LUTError):
        LatencyLUT.load(path)


# ---- sums -----------------------------------------------------------------------------------------------------------
@settings(max_examples=30)
@given(spaces_and_genomes(), seeds)
def test_the_latency_of_a_network_is_the_sum_of_its_blocks(members: tuple[SearchSpace, Genomes], seed: int) -> None:
    space, genomes = members
    lut = random_table(space, seed)
    expected = [
        sum(lut.rows[b.key].median_s for b in architecture.blocks(space, CLASSES))
        for architecture in decode(space, genomes)
    ]
    np.testing.assert_allclose(lut.latency_s(space, CLASSES, genomes), expected, rtol=1e-12)


def test_a_calibrated_sum_has_a_start_a_scale_and_a_boundary(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    genomes = sample(tiny_space, 20, np.random.default_rng(0))
    plain = table.latency_s(tiny_space, CLASSES, genomes)
    table.calibration = Calibration(1e-5, 1.25, 1e-6, 8, 0.01, 0.02, 0.99, 0.1)
    num_blocks = [len(a.blocks(tiny_space, CLASSES)) for a in decode(tiny_space, genomes)]
    expected = 1e-5 + 1.25 * plain + 1e-6 * np.array(num_blocks)
    np.testing.assert_allclose(table.latency_s(tiny_space, CLASSES, genomes), expected)


def test_a_calibration_describes_itself_in_one_line() -> None:
    text = Calibration(1e-5, 1.25, 1e-6, 8, 0.012, 0.034, 0.98, 0.1).describe()
    assert "1.2%" in text
    assert "3.4% at worst" in text
    assert "8 whole networks; 10.0% before" in text
    assert "\n" not in text


def test_the_seconds_of_a_block_are_those_of_its_row(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    for block in tiny_space.all_blocks(CLASSES):
        assert table.block_s(block) == table.rows[block.key].median_s


# ---- holes ----------------------------------------------------------------------------------------------------------
def test_holes_are_counted_and_the_first_is_named(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    blocks = tiny_space.all_blocks(CLASSES)
    for block in (blocks[5], blocks[2]):
        del table.rows[block.key]
    assert table.missing(blocks) == [blocks[2], blocks[5]]
    with pytest.raises(LUTError, match=f"lacks 2 blocks .* {blocks[2].key}"):
        table.latency_s(tiny_space, CLASSES, sample(tiny_space, 1, np.random.default_rng(0)))
    with pytest.raises(LUTError, match=blocks[5].key):
        table.block_s(blocks[5])


def test_another_number_of_classes_is_a_hole(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    with pytest.raises(LUTError, match="100 classes"):
        table.table(tiny_space, 100)


# ---- what a table does not hold for ---------------------------------------------------------------------------------
def test_a_table_holds_for_what_it_was_made_for(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    table.check(tiny_space, HOST)


def test_blocks_are_shared_by_spaces_of_other_names(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    other = dataclasses.replace(tiny_space, name="other", resolutions=(16, 20))
    table.check(other, HOST)
    assert [s.resolution for s in table.covered(other, CLASSES)] == [16, 16]
    genomes = sample(other, 20, np.random.default_rng(0), other.sub_spaces[0])
    seconds = table.table(other, CLASSES, with_holes=True).of(genomes)
    of_blocks = [sum(table.block_s(b) for b in a.blocks(other, CLASSES)) for a in decode(other, genomes)]
    np.testing.assert_allclose(seconds, of_blocks)
    del table.rows[other.block(other.sub_spaces[0], 0, 0, 3, 2).key]
    del table.rows[other.block(other.sub_spaces[1], 0, 0, 3, 2).key]
    with pytest.raises(LUTError, match="expected a LUT of space 'other'"):
        table.check_space(other)


@pytest.mark.parametrize(
    "change",
    [{"name": "other", "head_width": 64}, {"head_width": 64}, {"depths": (1,)}],
    ids=["name", "content", "part"],
)
def test_another_space_is_refused(tiny_space: SearchSpace, table: LatencyLUT, change: dict[str, Any]) -> None:
    other = dataclasses.replace(tiny_space, **change)
    for check in (lambda: table.check(other, HOST), lambda: table.table(other, CLASSES)):
        with pytest.raises(LUTError, match=other.digest):
            check()


@pytest.mark.parametrize(
    ("change", "telling"),
    [
        ({"name": "cpu-2t"}, "cpu-2t"),
        ({"fingerprint": "0123456789ab", "device": "6502"}, "0123456789ab, .* 6502 here"),
        ({"batch": 32}, "32"),
    ],
)
def test_another_target_is_refused(
    tiny_space: SearchSpace, table: LatencyLUT, change: dict[str, Any], telling: str
) -> None:
    with pytest.raises(LUTError, match=telling):
        table.check(tiny_space, dataclasses.replace(HOST, **change))


def test_another_compiler_is_refused(
    tiny_space: SearchSpace, table: LatencyLUT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "tvm_version", lambda: "0.99")
    with pytest.raises(LUTError, match=tvm_version()):
        table.check(tiny_space, HOST)


# ---- several dtypes -------------------------------------------------------------------------------------------------
DTYPES = ("float32", "bfloat16", "int8")


def mixed_table(space: SearchSpace, seed: int = 0) -> LatencyLUT:
    """Tables of float32, bfloat16 and int8, each with random seconds of its own, and those of conversions."""
    made = {}
    for number, dtype in enumerate(DTYPES):
        lut = random_table(space, len(DTYPES) * seed + number)
        seconds = random_table(space, 1000 + number).rows.values()
        rows = {b.key: row for b, row in zip(space.all_conversions(dtype), itertools.cycle(seconds), strict=False)}
        lut.header = dataclasses.replace(lut.header, dtype=dtype)
        made[dtype] = dataclasses.replace(lut, rows=lut.rows | rows)
    first = made.pop(DTYPES[0])
    return dataclasses.replace(first, others=made)


@pytest.fixture
def mixed(tiny_space: SearchSpace) -> LatencyLUT:
    return mixed_table(tiny_space)


def test_a_block_has_the_row_of_its_dtype(tiny_space: SearchSpace, mixed: LatencyLUT) -> None:
    for block in tiny_space.all_blocks(CLASSES):
        assert mixed.row(block) == mixed.row(dataclasses.replace(block, dtype="float32")) == mixed.rows[block.key]
        for dtype, lut in mixed.others.items():
            own = dataclasses.replace(block, dtype=dtype)
            assert mixed.of_block(own) is lut
            assert mixed.row(own) == lut.rows[block.key]
            assert mixed.block_s(own) == lut.rows[block.key].median_s != mixed.rows[block.key].median_s


@settings(max_examples=30)
@given(mixed_spaces_and_genomes(), seeds)
def test_the_latency_of_a_network_of_several_dtypes_is_the_sum_of_its_blocks(
    members: tuple[SearchSpace, Genomes], seed: int
) -> None:
    space, genomes = members
    lut = mixed_table(space, seed)
    expected = [sum(lut.block_s(block) for block in a.blocks(space, CLASSES)) for a in decode(space, genomes)]
    np.testing.assert_allclose(lut.latency_s(space, CLASSES, genomes), expected, rtol=1e-12)


def test_each_dtype_is_corrected_by_its_own_calibration(tiny_space: SearchSpace, mixed: LatencyLUT) -> None:
    space = tiny_space.with_dtypes(DTYPES)
    genomes = sample(space, 20, np.random.default_rng(0))
    fits = {"float32": (1e-5, 1.25, 1e-6), "bfloat16": (2e-5, 1.5, 2e-6), "int8": (3e-5, 0.75, 3e-6)}
    for dtype, lut in {"float32": mixed, **mixed.others}.items():
        lut.calibration = Calibration(*fits[dtype], 8, 0.01, 0.02, 0.99, 0.1)
    expected, num_blocks = [], 4 + space.num_stages * np.mean(space.depths)  # of a usual network
    for architecture in decode(space, genomes):
        seconds = 0.0
        for block in architecture.blocks(space, CLASSES):
            start, scale, each = fits[block.dtype or "float32"]
            seconds += scale * mixed.block_s(block) + each + (0.0 if block.converts else start / num_blocks)
        expected.append(seconds)
    np.testing.assert_allclose(mixed.latency_s(space, CLASSES, genomes), expected)


def test_weights_weigh_what_their_dtype_says(tiny_space: SearchSpace, mixed: LatencyLUT) -> None:
    for block in tiny_space.all_blocks(CLASSES):
        weights = [mixed.weight_bytes(dataclasses.replace(block, dtype=dtype)) for dtype in ("", *DTYPES)]
        assert weights == [n * block.num_params for n in (4, 4, 2, 1)]


def test_a_dtype_without_a_table_is_refused_by_name(tiny_space: SearchSpace, mixed: LatencyLUT) -> None:
    lut = dataclasses.replace(mixed, others={"int8": mixed.others["int8"]})
    block = dataclasses.replace(tiny_space.all_blocks(CLASSES)[0], dtype="bfloat16")
    for refuse in (
        lambda: lut.block_s(block),
        lambda: lut.missing([block]),
        lambda: lut.table(tiny_space.with_dtypes(DTYPES), CLASSES, with_holes=True),
    ):
        with pytest.raises(LUTError, match="the LUT of target 'cpu' has no blocks in bfloat16"):
            refuse()
    assert lut.table(tiny_space.with_dtypes(("float32", "int8")), CLASSES).smallest()[0].min() > 0.0


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_missing_conversions_are_named(tiny_space: SearchSpace, mixed: LatencyLUT, dtype: str) -> None:
    space, conversions = tiny_space.with_dtypes(DTYPES), tiny_space.all_conversions(dtype)
    for block in (conversions[1], conversions[0]):
        del mixed.others[dtype].rows[block.key]
    assert mixed.missing(conversions) == list(conversions[:2])
    with pytest.raises(LUTError, match=f"lacks 2 blocks .* {conversions[0].key}"):
        mixed.table(space, CLASSES)
    with pytest.raises(LUTError, match=f"has no row for block {conversions[1].key}"):
        mixed.block_s(conversions[1])
    assert mixed.table(tiny_space, CLASSES).smallest()[0].min() > 0.0


def test_a_network_with_a_hole_in_one_dtype_is_not_known(tiny_space: SearchSpace, mixed: LatencyLUT) -> None:
    space = tiny_space.with_dtypes(DTYPES)
    hole = dataclasses.replace(tiny_space.block(tiny_space.sub_spaces[0], 0, 0, 3, 2), dtype="int8")
    conversion = tiny_space.all_conversions("bfloat16", tiny_space.sub_spaces[:1])[0]
    for block in (hole, conversion):
        del mixed.of_block(block).rows[block.key]
    table = mixed.table(space, CLASSES, with_holes=True)
    genomes = sample(space, 500, np.random.default_rng(0))
    has_hole = [bool({hole, conversion} & set(a.blocks(space, CLASSES))) for a in decode(space, genomes)]
    np.testing.assert_array_equal(np.isnan(table.of(genomes)), has_hole)
    assert 0 < sum(has_hole) < len(has_hole)
    table.replace_nan(100.0)
    np.testing.assert_array_equal(table.of(genomes) >= 100.0, has_hole)


def test_sub_spaces_that_are_left_out_need_no_rows(tiny_space: SearchSpace, mixed: LatencyLUT) -> None:
    space, (first, *others) = tiny_space.with_dtypes(DTYPES), tiny_space.sub_spaces
    known = {b.key for dtype in DTYPES for b in Task(tiny_space, CLASSES).table_blocks(dtype, tuple(others))}
    for lut in (mixed, *mixed.others.values()):
        lut.rows = {key: row for key, row in lut.rows.items() if key in known}
    with pytest.raises(LUTError, match="lacks"):
        mixed.table(space, CLASSES)
    value, _ = mixed.table(space, CLASSES, left_out=(first,)).smallest()
    assert np.isinf(value[0, 0])
    assert np.isfinite(value).sum() == len(others)


def test_the_error_of_several_tables_is_the_largest(mixed: LatencyLUT) -> None:
    assert mixed.standard_error is None
    for number, lut in enumerate((mixed, *mixed.others.values())):
        assert mixed.standard_error is None
        lut.calibration = Calibration(1e-5, 1.0, 1e-6, 8, 0.01 * (1 + number), 0.2, 0.99, 0.1)
    assert mixed.standard_error == pytest.approx(0.03 * np.sqrt(np.pi / 2))
    assert mixed.others["bfloat16"].standard_error == pytest.approx(0.02 * np.sqrt(np.pi / 2))


def test_predicted_rows_are_found_in_each_dtype(tiny_space: SearchSpace, mixed: LatencyLUT) -> None:
    space = tiny_space.with_dtypes(DTYPES)
    blocks = decode(space, sample(space, 1, np.random.default_rng(3)))[0].blocks(space, CLASSES)
    assert mixed.predicted(blocks) == []
    chosen = [block for block in blocks if block.dtype == "int8"]
    rows = mixed.others["int8"].rows
    for block in chosen:
        rows[block.key] = dataclasses.replace(rows[block.key], predicted_error=0.07)
    assert mixed.predicted(blocks) == chosen
    assert len(chosen) > 1


def test_a_file_has_one_dtype(tiny_space: SearchSpace, mixed: LatencyLUT, tmp_path: Path) -> None:
    mixed.save(tmp_path / "table.json")
    assert LatencyLUT.load(tmp_path / "table.json") == dataclasses.replace(mixed, others={})
