"""chanas/search/transfer/networks.py: any file with latencies of several devices is read, predicted and written, or
refused in one line."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from chanas.core.genome import decode
from chanas.errors import ConfigError, DataError
from chanas.search.transfer.features import latency_features
from chanas.search.transfer.latencies import adapt, fit_known
from chanas.search.transfer.networks import predict_networks, read_networks

from ...benchmarks.networks import DEVICES, write_mbv3


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def cells(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def linear(num: int = 60, num_measured: int = 8) -> list[str]:
    """Networks of two choices on two devices, and on one that lies between them and has measured a few."""
    lines, measured = ["first,second,a_ms,b_ms,new_ms"], range(0, num, num // num_measured)[:num_measured]
    for i in range(num):
        first, second = i % 5, i // 5 % 4
        a, b = 1.3**first * 1.1**second, 3.0 * 1.2**first * 1.5**second
        a, b = a * (1.0 + 0.01 * (i % 3)), b * (1.0 + 0.01 * (i % 7 - 3))
        lines.append(f"op{first},op{second},{a},{b},{(a * b) ** 0.5 if i in measured else ''}")
    return lines


# ---- reading --------------------------------------------------------------------------------------------------------
def test_once_for_alls_file_has_features_of_its_space(tmp_path: Path, rng: np.random.Generator) -> None:
    path = write_mbv3(tmp_path / "measured.csv", rng)
    table = read_networks(path)
    assert table.devices == DEVICES
    assert table.once_for_all is not None
    space, genomes = table.once_for_all
    np.testing.assert_array_equal(table.features, latency_features(space, genomes))
    first = cells(path)[0]
    (architecture,) = decode(space, genomes[:1])
    assert " ".join(map(str, architecture.depths)) == first["d"]
    assert str(architecture.resolution) == first["r"]
    assert np.exp(table.log_latencies[0, 0]) == pytest.approx(float(first["fast_1_ms"]))


@pytest.mark.parametrize("names", ["depths kernels expands pixels", "d e ks r"])
def test_the_same_file_under_other_names_is_any_space(tmp_path: Path, rng: np.random.Generator, names: str) -> None:
    table = read_networks(write_mbv3(tmp_path / "measured.csv", rng, names))
    assert table.once_for_all is None
    assert list(table.description) == names.split()
    assert len(table.features) == 40


def test_accuracies_and_names_of_rows_describe_nothing(tmp_path: Path) -> None:
    rows = [f"network{i},op{i % 3},0.7,{i + 1}" for i in range(120)]
    table = read_networks(write(tmp_path / "a.csv", "name,op,accuracy,a_ms", *rows))
    assert list(table.description) == ["op"]
    assert table.names == ("name",)


@pytest.mark.parametrize("cell", ["", "failed", "nan", "inf", "0", "-1"])
def test_a_cell_that_is_no_positive_number_is_no_latency(tmp_path: Path, cell: str) -> None:
    table = read_networks(write(tmp_path / "a.csv", "x,a_ms,b_ms", "1,1,3", f"2,{cell},4"))
    assert table.devices == ("a", "b")
    assert np.isnan(table.log_latencies).tolist() == [[False, False], [True, False]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["x,a_ms,b_ms"], "2 such columns and 0 rows"),
        (["x,a_ms,b_ms", "1,2"], "line 2: expected 3 cells"),
        (["x,a,b", "1,2,3"], "0 such columns and 1 rows"),
        (["x,a_ms,a_ms", "1,2,3"], "column 'a_ms' twice"),
    ],
)
def test_a_file_that_says_nothing_is_one_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_networks(write(tmp_path / "a.csv", *lines))


@pytest.mark.parametrize("lines", [["x,a_ms,b_ms", "1,2,3", "1,3,4"], ["a_ms,b_ms", "2,3", "3,4"]])
def test_networks_that_nothing_tells_apart_are_refused(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(DataError, match="describe networks"):
        _ = read_networks(write(tmp_path / "a.csv", *lines)).features


# ---- predicting -----------------------------------------------------------------------------------------------------
def test_a_device_between_two_others_is_found_from_eight_measurements(tmp_path: Path) -> None:
    table = read_networks(write(tmp_path / "a.csv", *linear()))
    found = predict_networks(table, "new")
    truth = np.exp(table.log_latencies[:, :2].mean(axis=1))
    assert found.num_measured == 8
    np.testing.assert_allclose(found.ms[found.is_measured], truth[found.is_measured])
    assert np.abs(found.ms / truth - 1.0).max() < 0.1
    assert set(found.weights) == {"a", "b"}
    assert min(found.weights.values()) > 0.2


def test_what_is_measured_everywhere_else_is_predicted_as_from_python(tmp_path: Path) -> None:
    table = read_networks(write(tmp_path / "a.csv", *linear()))
    known = fit_known(table.features, table.log_latencies[:, :2])
    measured = np.flatnonzero(~np.isnan(table.log_latencies[:, 2]))
    expected = adapt(known, measured, table.log_latencies[measured, 2])
    found = predict_networks(table, "new")
    predicted = np.exp(expected.log_latencies)
    np.testing.assert_allclose(found.ms[~found.is_measured], predicted[~found.is_measured], rtol=1e-9)
    np.testing.assert_allclose(found.deviations, expected.deviations, rtol=1e-9)


def test_a_network_that_no_other_device_has_timed_is_predicted_too(tmp_path: Path) -> None:
    lines = linear(240)
    first, second, *_ = lines[-1].split(",")
    found = predict_networks(read_networks(write(tmp_path / "a.csv", *lines[:-1], f"{first},{second},,9,")), "new")
    whole = predict_networks(read_networks(write(tmp_path / "b.csv", *lines)), "new")
    assert found.ms[-1] == pytest.approx(whole.ms[-1], rel=0.05)


def test_it_is_refused_where_few_others_say_what_networks_take(tmp_path: Path) -> None:
    table = read_networks(write(tmp_path / "a.csv", *linear()[:-1], "op1,op1,,9,"))
    with pytest.raises(
        DataError, match=r"^1 networks in .* lack a latency on another device than new, and the other 59"
    ):
        predict_networks(table, "new")


@pytest.mark.parametrize(
    ("device", "lines", "error", "message"),
    [
        ("gpu", linear(), ConfigError, "unknown device 'gpu'; known: a, b, new"),
        ("new", linear(num_measured=4), DataError, "at least 5 networks with a latency on new in .*, got 4"),
        ("a", ["x,a_ms", *(f"{i},1" for i in range(9))], DataError, "other devices than a"),
        ("a", ["x,a_ms,b_ms", *(f"{i},1," for i in range(9))], DataError, "each other device in .*, got 0"),
    ],
)
def test_what_says_too_little_is_refused(
    tmp_path: Path, device: str, lines: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        predict_networks(read_networks(write(tmp_path / "a.csv", *lines)), device)


# ---- writing --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_the_file_has_all_latencies_and_says_which_were_predicted(tmp_path: Path, name: str) -> None:
    before = write(tmp_path / "a.csv", *linear())
    found = predict_networks(read_networks(before), "new")
    found.save(tmp_path / name)
    content = (tmp_path / name).read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    rows = list(csv.DictReader(text.splitlines()))
    assert [list(row.values())[:4] for row in rows] == [list(row.values())[:4] for row in cells(before)]
    assert [bool(row["new_predicted_error"]) for row in rows] == (~found.is_measured).tolist()
    assert [float(row["new_ms"]) for row in rows] == pytest.approx(found.ms.tolist(), rel=1e-5)


def test_what_was_predicted_before_counts_as_not_measured(tmp_path: Path) -> None:
    first = predict_networks(read_networks(write(tmp_path / "a.csv", *linear())), "new")
    first.save(tmp_path / "out.csv")
    again = predict_networks(read_networks(tmp_path / "out.csv"), "new")
    assert again.num_measured == 8
    again.save(tmp_path / "again.csv")
    assert cells(tmp_path / "again.csv") == cells(tmp_path / "out.csv")


def test_people_and_programs_are_told_the_same(tmp_path: Path) -> None:
    found = predict_networks(read_networks(write(tmp_path / "a.csv", *linear())), "new")
    data, (first, *_, last) = found.to_json(), list(found.lines())
    assert first == "networks   60: 8 measured on new, 52 predicted from 2 other devices"
    assert last == f"predicted  ± {data['predicted_error']:.1%} (median)"
    assert (data["num_networks"], data["num_measured"], data["left_out"]) == (60, 8, [])
