"""report/tuned.py: the page of a tuned network from its document, its records in short and spaces that were tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from html_pages import Page

from chanas.operators.workload import Workload
from chanas.report.reading import Tuning, TuningCurve
from chanas.report.spaces import TriedSpace
from chanas.report.tuned import TunedData, build_tuned_report, draw_times

WORKLOADS = [Workload("pointwise", 8, 16 * n, 32) for n in range(1, 15)]


def document(num: int = 2, **changes: Any) -> dict[str, Any]:
    operators = [
        {
            "key": w.key,
            "point": [1, 2, n],
            "count": 1 + n,
            "seconds": 1e-6 * (n + 1),
            "workload": w.to_json(),
            "trials": 12,
            "failed": n,
            "mean_gflops": 40.0,
            "best_gflops": 80.5,
            "share_of_peak": 0.75,
        }
        for n, w in enumerate(WORKLOADS[:num])
    ]
    content = {
        "name": "a <net> & more",
        "run_id": "feed",
        "remark": "random weights: for timing only",
        "origin": {"kind": "onnx", "name": "net.onnx"},
        "target": {"name": "cpu", "device": "A <fast> CPU", "num_threads": 1},
        "operators": operators,
        "measured": {"latency_s": 1e-5, "spread_s": 1e-7, "peak_gflops": 110.0},
        "versions": {"tvm": "0.27"},
        "hashes": {"module.so": "0123"},
        "run": "..",
        "knobs": {"name": "mine.yaml", "hash": "abcd"},
    }
    return content | changes


def page(folder: Path, data: TunedData) -> Page:
    return Page(build_tuned_report(folder, data).read_text(encoding="utf-8"))


TUNING = Tuning(2, 24, 1, (TuningCurve(WORKLOADS[0].key, ((1, 3e-6), (2, 2e-6), (5, 1e-6))),), 0.9)
SPACE = TriedSpace("pointwise", (("a", ("1", "2")), ("b", ("1", "2"))), (((0, 0), 1.0), ((1, 1), 2.0), ((0, 1), 3.0)))


def test_a_page_has_the_times_the_table_the_curves_and_the_spaces(tmp_path: Path) -> None:
    found = page(tmp_path, TunedData(document(), 12.5, TUNING, [SPACE]))
    assert found.figures == ["operators", "tuning", "space-0", "effects-0"]
    assert len(found.ids) == len(set(found.ids))
    assert found.fetched == []
    first, second = (w.key for w in WORKLOADS[:2])
    assert f"{second} [1, 2, 1] 2 4 µs 40.0 % 12 (1 failed) 40.0 80.5 75 %" in found.text
    assert f"{first} [1, 2, 0] 1 1 µs 10.0 % 12 40.0 80.5 75 %" in found.text
    for told in (
        "a <net> & more: the tuned",
        "10 µs",
        "12.5 GFLOP/s",
        "NumPy reaches 110.0",
        "random weights",
        "mine.yaml",
    ):
        assert told in found.text
    assert (tmp_path / "report.html").is_file()


def test_a_page_has_what_int8_costs_in_accuracy(tmp_path: Path) -> None:
    found = {"split": "test", "num_images": 360, "top1_float32": 0.9722, "top1_int8": 0.97}
    told = page(tmp_path, TunedData(document(quantized={"accuracies": [found]}))).text
    assert "97.00 % top-1 of 360 test images, 97.22 % in float32" in told


def test_without_records_there_is_the_table_and_a_line_that_says_why(tmp_path: Path) -> None:
    found = page(tmp_path, TunedData(document(knobs=None), notes=["the records are <gone>"]))
    assert found.figures == ["operators"]
    assert "the records are <gone>" in found.text
    assert WORKLOADS[1].key in found.text


def test_an_older_document_has_no_trials(tmp_path: Path) -> None:
    names = ("workload", "trials", "failed", "mean_gflops", "best_gflops", "share_of_peak")
    older = document(remark="", measured={"latency_s": 1e-5})
    older["operators"] = [{k: v for k, v in o.items() if k not in names} for o in older["operators"]]
    found = page(tmp_path, TunedData(older))
    assert f"{WORKLOADS[0].key} [1, 2, 0] 1 1 µs 10.0 % – – – –" in found.text
    assert "trials of these operators" not in found.text


def test_many_operators_have_one_bar_for_those_that_take_least() -> None:
    figure = draw_times(document(14))
    assert figure is not None
    assert len(figure.rows) == 15
    assert figure.drawing.count("<rect") == 14
    assert "2 further operators" in figure.drawing


def test_the_last_bar_is_what_the_network_takes_beyond_its_operators() -> None:
    figure = draw_times(document())
    assert figure is not None
    assert figure.rows[-1] == ("everything else", "", "5", "50.0 %")


def test_an_operator_that_took_over_a_schedule_says_whose(tmp_path: Path) -> None:
    content = document()
    content["operators"][0]["taken_from"] = "another one"
    assert f"{WORKLOADS[0].key}, schedule of another one" in page(tmp_path, TunedData(content)).text


def test_a_network_without_operators_has_a_page(tmp_path: Path) -> None:
    assert "It has no operators." in page(tmp_path, TunedData(document(0))).text


@pytest.mark.parametrize("spaces", [(), (SPACE,)])
def test_spaces_have_a_heading_where_there_are_some(tmp_path: Path, spaces: tuple[TriedSpace, ...]) -> None:
    assert ("The schedule spaces" in page(tmp_path, TunedData(document(), None, TUNING, spaces)).text) == bool(spaces)
