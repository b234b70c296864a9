"""A tuned network beside other runtimes: what takes part, what is noted, and where its source is looked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import save_exported

from chanas.bundle.benchmark import MODULE_ALONE, BenchmarkRow
from chanas.bundle.codesign import CoDesign
from chanas.bundle.tuned import DOCUMENT, TunedNetwork
from chanas.core.arch import SearchSpace
from chanas.errors import ModelError
from chanas.prescheduler.measuring.local.compiler import Compiler
from chanas.workflows.models import contenders
from chanas.workflows.models.bench import (
    OWN,
    RUNTIMES,
    UNTUNED,
    BenchSettings,
    benchmark_bundle,
    benchmark_tuned,
    open_origin,
)
from chanas.workflows.models.contenders import Call, Subject

from ...bundle.test_codesign import HOST, make_bundle


def by_name(rows: list[BenchmarkRow]) -> dict[str, BenchmarkRow]:
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: row for row in rows}


def bench(folder: Path, **makers: Any) -> dict[str, BenchmarkRow]:
    """Rows beside the contenders that are given."""
    network = TunedNetwork.open(folder)
    return by_name(benchmark_tuned(network, open_origin(network), BenchSettings(makers, False, 2)))


def changed_origin(folder: Path, to: Path, **changes: str | None) -> Path:
    """A copy whose document says another origin; None leaves an entry out."""
    copy = Path(shutil.copytree(folder, to))
    document = json.loads((copy / DOCUMENT).read_text(encoding="utf-8"))
    origin = {key: value for key, value in {**document["origin"], **changes}.items() if value is not None}
    (copy / DOCUMENT).write_text(json.dumps({**document, "origin": origin}), encoding="utf-8")
    return copy


def test_every_contender_has_a_row_and_ratios_are_to_chanas(no_build_here: None, tuned_folder: Path) -> None:
    network = TunedNetwork.open(tuned_folder)
    settings = BenchSettings({"PyTorch eager": contenders.run_eager}, rounds=2)
    rows = by_name(benchmark_tuned(network, open_origin(network), settings))
    assert list(rows) == [OWN, MODULE_ALONE, "PyTorch eager", UNTUNED]
    own_s = rows[OWN].median_s
    assert own_s is not None
    for row in rows.values():
        assert row.note == ""
        assert row.median_s is not None
        assert row.median_s > 0
        assert row.ratio == pytest.approx(row.median_s / own_s)


def test_the_contenders_are_those_that_people_run(tuned_folder: Path) -> None:
    assert list(BenchSettings().contenders) == ["PyTorch eager", "torch.compile", "ONNX Runtime", "OpenVINO"]
    assert BenchSettings().with_untuned


@pytest.mark.parametrize(("name", "package"), [("ONNX Runtime", "onnxruntime"), ("OpenVINO", "openvino")])
def test_a_runtime_that_is_missing_has_a_note_with_what_installs_it(
    tuned_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    row = bench(tuned_folder, **{name: contenders.CONTENDERS[name]})[name]
    assert (row.median_s, row.ratio) == (None, None)
    assert row.note == f"{package} is not installed: pip install 'chanas[bench]'"


def test_a_bundle_has_the_same_runtimes_beside_it(tiny_space: SearchSpace, tmp_path: Path, compiler: Compiler) -> None:
    bundle = make_bundle(tiny_space, tmp_path, HOST, compiler)

    def eager(subject: Subject) -> Call:
        assert subject.inputs[0].shape == (1, 3, 12, 12)
        return contenders.run_eager(subject)

    def wrong(subject: Subject) -> Call:
        return lambda: np.zeros((1, 1))

    makers = {"same": eager, "wrong": wrong, "OpenVINO": contenders.CONTENDERS["OpenVINO"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "openvino", None)
        rows = by_name(benchmark_bundle(CoDesign.load(bundle), False, rounds=2, runtimes=makers))
    assert list(rows) == [OWN, MODULE_ALONE, "PyTorch eager", "same", "wrong", "OpenVINO"]
    assert rows["same"].ratio is not None
    assert rows["wrong"].note == "outputs differ by inf of the largest"
    assert rows["OpenVINO"].note == "openvino is not installed: pip install 'chanas[bench]'"
    assert list(RUNTIMES) == ["ONNX Runtime", "OpenVINO"]


def test_contenders_compute_in_bfloat16_where_they_can(tuned_folder: Path) -> None:
    opened = open_origin(TunedNetwork.open(tuned_folder))
    inputs = opened.random_inputs()
    subject = Subject(opened.program, tuned_folder / "none.onnx", inputs, 1, "bfloat16")
    with torch.inference_mode():
        (rounded,) = contenders.outputs_of([part.float() for part in [contenders.run_eager(subject)()]])
    (exact,) = opened.answer(inputs)
    assert 1e-5 < contenders.relative_error([rounded], [exact]) < 0.1
    with pytest.raises(ModelError, match="ONNX Runtime does not compute in bfloat16"):
        contenders.run_onnxruntime(subject)


def test_pytorch_takes_no_part_where_the_network_is_an_onnx_file(tuned_onnx_folder: Path) -> None:
    rows = bench(tuned_onnx_folder, eager=contenders.run_eager, compiled=contenders.run_compiled)
    assert {rows["eager"].note, rows["compiled"].note} == {"the network comes from an ONNX file"}
    assert rows[OWN].note == ""


def test_every_contender_gets_the_file_itself_where_the_network_is_an_onnx_file(tuned_onnx_folder: Path) -> None:
    met: list[Path] = []

    def look(subject: Subject) -> Call:
        met.append(contenders.onnx_file(subject))
        raise ModelError("enough")

    assert bench(tuned_onnx_folder, look=look)["look"].note == "enough"
    assert met == [tuned_onnx_folder.parent / "other.onnx"]


def test_other_outputs_are_noted_beside_the_time(tuned_folder: Path) -> None:
    def double(subject: Subject) -> Call:
        run = contenders.run_eager(subject)
        return lambda: run() * 2

    def fewer(subject: Subject) -> Call:
        return lambda: np.zeros((1, 2), np.float32)

    rows = bench(tuned_folder, double=double, fewer=fewer)
    assert rows["double"].note == "outputs differ by 1.0e+00 of the largest"
    assert rows["double"].median_s is not None
    assert rows["fewer"].note == "outputs differ by inf of the largest"
    assert rows[OWN].note == ""


def test_a_compiler_of_others_may_raise_anything(tuned_folder: Path) -> None:
    def broken(subject: Subject) -> Call:
        raise RuntimeError("no\n  such thing")

    row = bench(tuned_folder, broken=broken)["broken"]
    assert (row.median_s, row.note) == (None, "did not compile: RuntimeError: no such thing")


def test_without_its_source_only_the_network_itself_is_timed(tuned_folder: Path) -> None:
    rows = by_name(benchmark_tuned(TunedNetwork.open(tuned_folder), None, BenchSettings(rounds=2)))
    assert list(rows) == [OWN, MODULE_ALONE]


def test_the_source_is_found_where_it_was(tuned_folder: Path) -> None:
    opened = open_origin(TunedNetwork.open(tuned_folder))
    assert opened.origin["source"] == str(tuned_folder.parent / "net.pt2")
    assert opened.program is not None


def test_a_source_that_has_moved_is_one_line_and_can_be_given(tuned_folder: Path, tmp_path: Path) -> None:
    network = TunedNetwork.open(changed_origin(tuned_folder, tmp_path / "net", source=str(tmp_path / "gone.pt2")))
    with pytest.raises(ModelError, match=r"gone\.pt2, which .* is not there; give it as --model FILE"):
        open_origin(network)
    moved = shutil.copyfile(tuned_folder.parent / "net.pt2", tmp_path / "moved.pt2")
    assert open_origin(network, moved).origin["source"] == str(moved)


def test_a_folder_that_does_not_say_where_its_source_was_asks_for_it(tuned_folder: Path, tmp_path: Path) -> None:
    network = TunedNetwork.open(changed_origin(tuned_folder, tmp_path / "net", source=None))
    with pytest.raises(ModelError, match=r"does not say where net\.pt2 lay; give it as --model FILE"):
        open_origin(network)


def test_another_file_is_refused_by_its_hash(tuned_folder: Path, tmp_path: Path) -> None:
    other = save_exported(tmp_path / "net.pt2", seed=1)
    network = TunedNetwork.open(tuned_folder)
    expected = network.document["origin"]["sha256"][:16]
    with pytest.raises(ModelError, match=f"is not the network that .*{expected}") as error:
        open_origin(network, other)
    assert "\n" not in str(error.value)


def test_a_file_that_is_none_is_refused(tuned_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        open_origin(TunedNetwork.open(tuned_folder), tmp_path / "none.pt2")


def test_an_error_is_a_share_of_the_largest_output() -> None:
    expected = [np.array([1.0, -4.0]), np.array([2.0])]
    assert contenders.relative_error([np.array([1.0, -4.0]), np.array([2.2])], expected) == pytest.approx(0.05)
    assert np.isnan(contenders.relative_error([np.array([1.0, np.nan]), np.array([2.0])], expected))
    assert contenders.relative_error(expected[:1], expected) == np.inf
