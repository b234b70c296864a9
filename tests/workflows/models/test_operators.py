"""Where a tuned network's time goes: its operators where they stand, and what spoils the comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from networks import NUM_CLASSES, change_document, untuned_program
from numpy.typing import NDArray

from chanas.bundle import tuned
from chanas.bundle.tuned import DOCUMENT, SOURCE, TunedNetwork
from chanas.errors import CheckpointError, TargetError
from chanas.files.writing import file_digest
from chanas.workflows.models import operators
from chanas.workflows.models.operators import (
    NUM_SHOWN,
    OperatorRow,
    by_cost,
    expensive_lines,
    operator_places,
    profile_lines,
    stored_rows,
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> TunedNetwork:
    """A network in which one operator stands twice, and some have no schedule."""
    import torch
    from torch import nn

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.other = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.other(torch.relu(self.other(torch.relu(self.first(x))))))
            return torch.softmax(nn.functional.interpolate(x, scale_factor=1.5, mode="bilinear").flatten(1), -1)

    place = tmp_path_factory.mktemp("mixed")
    torch.manual_seed(0)
    return TunedNetwork.open(untuned_program(Mixed(), [torch.zeros(1, 3, 8, 8)], place))


def test_every_place_has_a_row_in_the_order_of_the_network(mixed: TunedNetwork) -> None:
    places = operator_places(mixed)
    assert [p.name for p in places if p.gflops is not None] == [
        "conv-8px-3x16-k3s1-relu-float32",
        "pointwise-8px-16x16-k1s1-relu-float32",
        "pointwise-8px-16x16-k1s1-relu-float32",
    ]
    others = [p for p in places if p.gflops is None]
    assert {p.what for p in others} == {"no schedule"}
    assert [name for name in (p.name for p in others) if "interpolate" in name or "softmax" in name] == [
        "interpolate",
        "interpolate",
        "softmax",
    ]
    for place in places:
        assert place.count == 1
        assert place.seconds > 0.0
        assert place.share_of_peak is None or 0.0 < place.share_of_peak <= 1.0


def test_rates_are_of_the_operations_of_a_place(mixed: TunedNetwork) -> None:
    place = operator_places(mixed)[1]
    assert place.gflops == pytest.approx(2 * 64 * 16 * 16 / place.seconds / 1e9)


def test_the_places_of_an_operator_are_one_row_and_the_most_expensive_come_first() -> None:
    conv, soft = ("conv", "conv-8px"), ("no schedule", "softmax")
    places = [
        OperatorRow(*conv, 1, 2e-3, 10.0, 0.5),
        OperatorRow(*soft, 1, 5e-3),
        OperatorRow(*conv, 1, 6e-3, 10.0 / 3, 0.5 / 3),
    ]
    first, second = by_cost(places)
    assert (first.name, first.count, first.seconds) == ("conv-8px", 2, pytest.approx(4e-3))
    assert first.total_s == pytest.approx(8e-3)
    assert first.gflops == pytest.approx(5.0)
    assert first.share_of_peak == pytest.approx(0.25)
    assert second == places[1]


def test_the_most_expensive_are_shown_a_line_says_how_to_see_all_and_a_profile_has_all_places() -> None:
    places = [OperatorRow("no schedule", f"op{letter}", 1, (n + 1) * 1e-3) for n, letter in enumerate("abcdefghij")]
    told, _, *rows, more = expensive_lines(by_cost(places), Path("a net"))
    assert told == "55 ms in 10 calls of 10 operators; the most expensive:"
    assert [row.split()[-1] for row in rows] == [f"op{letter}" for letter in "jihgfedc"]
    assert len(rows) == NUM_SHOWN
    assert rows[0].split()[:9] == ["10", "ms", "18%", "1", "-", "-", "-", "-", "-"]
    assert more == "2 more: `chanas report 'a net'` shows all of them"
    assert not any("more:" in line for line in expensive_lines(by_cost(places[:NUM_SHOWN]), Path("net")))
    assert [row.split()[-1] for row in list(profile_lines(places))[1:]] == [p.name for p in places]


def test_rows_have_the_trials_of_the_document(copied: Path) -> None:
    entries = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["operators"]
    tried = [{**e, "trials": 7, "mean_gflops": 1.25, "best_gflops": 2.5, "share_of_peak": 0.5} for e in entries]
    change_document(copied, operators=tried)
    network = TunedNetwork.open(copied)
    for rows in (by_cost(operator_places(network)), stored_rows(network)):
        scheduled = [row for row in rows if not row.is_unscheduled]
        assert {row.name for row in scheduled} == {e["key"] for e in entries}
        assert {(row.trials, row.mean_gflops, row.best_gflops) for row in scheduled} == {(7, 1.25, 2.5)}
    line = list(expensive_lines(stored_rows(network), copied))[2]
    assert line.split()[4:9] == [f"{stored_rows(network)[0].gflops:.1f}", "50%", "7", "1.2", "2.5"]


def test_stored_rows_have_the_times_of_operators_alone(copied: Path) -> None:
    entries = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["operators"]
    rows = stored_rows(TunedNetwork.open(copied))
    assert [row.total_s for row in rows] == sorted((e["count"] * e["seconds"] for e in entries), reverse=True)
    assert {row.name: row.seconds for row in rows} == {e["key"]: e["seconds"] for e in entries}


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("softmax", "softmax"),
        ("fused_unpack1_resize2d3_pack", "resize2d"),
        ("fused_unpack1_reshape3", "unpack_reshape"),
        ("max_pool2d4", "max_pool2d"),
        ("fused_multiply2_add", "multiply_add"),
    ],
)
def test_a_function_without_a_schedule_is_called_after_what_it_computes(function: str, name: str) -> None:
    kernel = operators._unscheduled(function)
    assert (kernel.what, kernel.name) == ("no schedule", name)


def test_an_older_folder_has_times_and_no_rates(copied: Path) -> None:
    entries = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["operators"]
    change_document(copied, schema=1, operators=[{k: v for k, v in e.items() if k != "workload"} for e in entries])
    places = operator_places(TunedNetwork.open(copied))
    assert {p.gflops for p in places} == {p.share_of_peak for p in places} == {None}
    assert {row.gflops for row in stored_rows(TunedNetwork.open(copied))} == {None}
    assert {e["key"] for e in entries} <= {p.name for p in places}


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        operator_places(TunedNetwork.open(folder))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_without_its_source_is_refused(copied: Path) -> None:
    hashes = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["hashes"]
    change_document(copied, hashes={name: hashes[name] for name in hashes if name != SOURCE})
    assert "has no module.json" in refused(copied)


def test_a_source_that_calls_other_kernels_is_refused(copied: Path) -> None:
    text = (copied / SOURCE).read_text(encoding="utf-8")
    (copied / SOURCE).write_text(text.replace("tuned0", "tuned9"), encoding="utf-8")
    hashes = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["hashes"]
    change_document(copied, hashes={**hashes, SOURCE: file_digest(copied / SOURCE)})
    assert "is of another program than module.so" in refused(copied)


def test_a_source_that_gives_other_outputs_is_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> Callable[..., tuple[list[NDArray[np.float32]], list[tuple[str, float]]]]:
        return lambda *_: ([np.zeros((1, NUM_CLASSES), np.float32)], [])

    monkeypatch.setattr(tuned, "load_timed", load)
    assert "is of another program than module.so" in refused(copied)


def test_a_document_that_counts_otherwise_is_refused(copied: Path) -> None:
    entries = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["operators"]
    change_document(copied, operators=[{**entries[0], "count": 7}, *entries[1:]])
    assert "calls other operators than its document says" in refused(copied)


def test_another_device_is_refused(copied: Path) -> None:
    target = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["target"]
    change_document(copied, target={**target, "fingerprint": "0123456789ab", "device": "6502"})
    with pytest.raises(TargetError, match="compiled for 6502"):
        operator_places(TunedNetwork.open(copied))
