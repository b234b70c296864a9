"""A tuned network beside other runtimes: what takes part, what is noted, and where its source is looked for."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import SHAPE, change_document, save_exported, save_untuned

from chanas.bundle.benchmark import MODULE_ALONE, BenchmarkRow
from chanas.bundle.codesign import CoDesign
from chanas.bundle.tuned import TunedNetwork
from chanas.core.arch import SearchSpace
from chanas.core.target import in_dtype
from chanas.errors import ModelError
from chanas.measuring.worker.compiler import Compiler
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


def with_source(folder: Path, source: str | None) -> TunedNetwork:
    """A network whose document says that it was made from another file, or not from which."""
    origin = {key: value for key, value in TunedNetwork.open(folder).document["origin"].items() if key != "source"}
    change_document(folder, origin=origin if source is None else {**origin, "source": source})
    return TunedNetwork.open(folder)


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
        assert (row.spread_s is None) == (row.name == UNTUNED)


def test_the_contenders_are_those_that_people_run(tuned_folder: Path) -> None:
    names = ["PyTorch eager", "torch.compile", "ONNX Runtime", "OpenVINO", "LiteRT"]
    assert list(BenchSettings().contenders) == names
    assert BenchSettings().with_untuned


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("ONNX Runtime", "onnxruntime", "'chanas[bench]'"),
        ("OpenVINO", "openvino", "'chanas[bench]'"),
        ("LiteRT", "litert_torch", "litert-torch"),
    ],
)
def test_a_runtime_that_is_missing_has_a_note_with_what_installs_it(
    tuned_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, install: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    row = bench(tuned_folder, **{name: contenders.CONTENDERS[name]})[name]
    assert (row.median_s, row.ratio) == (None, None)
    assert row.note == f"{package} is not installed: pip install {install}"


def test_a_bundle_has_the_same_runtimes_beside_it(tiny_space: SearchSpace, tmp_path: Path, compiler: Compiler) -> None:
    bundle = make_bundle(tiny_space, tmp_path, HOST, compiler)

    def eager(subject: Subject) -> Call:
        assert subject.inputs[0].shape == (1, 3, 12, 12)
        return contenders.run_eager(subject)

    def wrong(subject: Subject) -> Call:
        return lambda: np.zeros((1, 1))

    def remarked(subject: Subject) -> Call:
        subject.remarks["remarked"] = "3 of 4 nodes"
        return contenders.run_eager(subject)

    makers = {"same": eager, "wrong": wrong, "remarked": remarked, "OpenVINO": contenders.CONTENDERS["OpenVINO"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "openvino", None)
        rows = by_name(benchmark_bundle(CoDesign.load(bundle), False, rounds=2, runtimes=makers))
    assert list(rows) == [OWN, MODULE_ALONE, "PyTorch eager", "same", "remarked", "wrong", "OpenVINO"]
    assert rows["same"].ratio is not None
    assert rows["remarked"].ratio is not None
    assert (rows["same"].note, rows["remarked"].note) == ("", "3 of 4 nodes")
    assert rows["wrong"].note == "outputs differ by inf of the largest"
    assert rows["OpenVINO"].note == "openvino is not installed: pip install 'chanas[bench]'"
    assert list(RUNTIMES) == ["ONNX Runtime", "OpenVINO", "LiteRT"]


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


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", []),
        ("bfloat16", ["PyTorch eager bf16", "torch.compile bf16", "OpenVINO bf16"]),
        ("int8", ["ONNX Runtime int8", "OpenVINO int8"]),
    ],
)
def test_contenders_are_timed_in_the_dtype_of_the_network_too(
    tuned_folder: Path, dtype: str, expected: list[str]
) -> None:
    plain = TunedNetwork.open(tuned_folder)
    network = TunedNetwork(plain.folder, in_dtype(plain.target, dtype), plain.document)
    met: list[str] = []

    def look(subject: Subject) -> Call:
        met.append(subject.dtype)
        return contenders.run_eager(dataclasses.replace(subject, dtype="float32"))

    settings = BenchSettings(dict.fromkeys(contenders.CONTENDERS, look), False, 2)
    rows = by_name(benchmark_tuned(network, open_origin(plain), settings))
    assert list(rows) == [OWN, MODULE_ALONE, *contenders.CONTENDERS, *expected]
    assert met == ["float32"] * len(contenders.CONTENDERS) + [dtype] * len(expected)
    was_quantised = TunedNetwork(plain.folder, network.target, {**plain.document, "int8": {"method": "file"}})
    if dtype == "int8":
        assert list(by_name(benchmark_tuned(was_quantised, open_origin(plain), settings))) == list(rows)[:-2]


@pytest.mark.parametrize("name", ["ONNX Runtime", "OpenVINO"])
def test_runtimes_quantise_the_network_themselves(tuned_folder: Path, tmp_path: Path, name: str) -> None:
    for package in ("onnxruntime",) if name == "ONNX Runtime" else ("openvino", "nncf"):
        pytest.importorskip(package, reason="pip install 'chanas[bench]'")
    opened = open_origin(TunedNetwork.open(tuned_folder))
    subject = Subject(opened.program, tmp_path / "net.onnx", opened.random_inputs(), 1, "int8")
    got = contenders.outputs_of(contenders.CONTENDERS[name](subject)())
    assert 1e-5 < contenders.relative_error(got, opened.answer(opened.random_inputs())) < 0.1


def test_what_quantises_for_openvino_is_named_where_it_is_missing(
    tuned_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders.importlib.util, "find_spec", lambda name: None if name == "nncf" else name)
    with pytest.raises(ModelError, match=r"nncf is not installed: pip install 'chanas\[bench\]'"):
        contenders.quantised_by_nncf(tuned_folder / "net.onnx", [], tuned_folder / "net.xml")


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


def test_a_remark_stands_beside_the_time(tuned_folder: Path) -> None:
    def partial(subject: Subject) -> Call:
        subject.remarks["partial"] = "3 of 4 nodes"
        return contenders.run_eager(subject)

    row = bench(tuned_folder, partial=partial)["partial"]
    assert row.median_s is not None
    assert row.note == "3 of 4 nodes"


def test_a_module_for_exporters_has_weights_of_its_own_that_autograd_takes(tuned_folder: Path) -> None:
    with torch.inference_mode():
        program = torch.export.load(tuned_folder.parent / "net.pt2")
        module = contenders.module_copy(program)
    x = torch.randn(SHAPE, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() > 0
    assert not module.training
    own, copied = program.module().state_dict(), module.state_dict()
    assert own.keys() == copied.keys()
    for name, tensor in own.items():
        assert tensor.is_inference()
        assert torch.equal(tensor, copied[name])
        assert tensor.data_ptr() != copied[name].data_ptr()


def test_nodes_that_run_outside_the_delegate_are_counted() -> None:
    nodes = [
        {"index": 0, "op_name": "CONV_2D", "inputs": [0, 10], "outputs": [1]},
        {"index": 1, "op_name": "PADV2", "inputs": [1], "outputs": [2]},
        {"index": 2, "op_name": "CONV_2D", "inputs": [2, 11], "outputs": [3]},
        {"index": 3, "op_name": "MEAN", "inputs": [3], "outputs": [4]},
    ]
    first = {"index": 4, "op_name": "DELEGATE", "inputs": [0, 10], "outputs": [1]}
    second = {"index": 5, "op_name": "DELEGATE", "inputs": [2, 11], "outputs": [4]}
    whole = {"index": 4, "op_name": "DELEGATE", "inputs": [0, 10, 11], "outputs": [4]}
    assert contenders.undelegated(nodes, [4]) == (["CONV_2D", "PADV2", "CONV_2D", "MEAN"], 4)
    assert contenders.undelegated([*nodes, first], [4]) == (["PADV2", "CONV_2D", "MEAN"], 4)
    assert contenders.undelegated([*nodes, first, second], [4]) == (["PADV2"], 4)
    assert contenders.undelegated([*nodes, whole], [4]) == ([], 4)


@pytest.mark.slow
def test_litert_computes_the_same_of_a_program_that_was_loaded_in_inference_mode(tuned_folder: Path) -> None:
    pytest.importorskip("litert_torch", reason="pip install litert-torch")
    opened = open_origin(TunedNetwork.open(tuned_folder))
    inputs = opened.random_inputs()
    with torch.inference_mode():
        program = torch.export.load(tuned_folder.parent / "net.pt2")
        subject = Subject(program, tuned_folder / "none.onnx", inputs, 1)
        call = contenders.run_litert(subject)
    assert contenders.relative_error(contenders.outputs_of(call()), opened.answer(inputs)) < 1e-5
    assert subject.remarks == {}


@pytest.mark.slow
def test_litert_takes_inputs_by_place_and_by_name_and_whole_numbers(tmp_path: Path) -> None:
    pytest.importorskip("litert_torch", reason="pip install litert-torch")

    class Several(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, second: torch.Tensor, first: torch.Tensor) -> list[torch.Tensor]:
            return [x + second, first * 2]

    x, whole = torch.randn(2, 3), torch.arange(6).reshape(2, 3)
    program = torch.export.export(Several(), (x,), {"second": x * 3, "first": whole})
    arrays = [x.numpy(), (x * 3).numpy(), whole.numpy()]
    call = contenders.run_litert(Subject(program, tmp_path / "none.onnx", arrays, 1))
    for got, expected in zip(contenders.outputs_of(call()), [x * 4, whole * 2], strict=True):
        np.testing.assert_allclose(got, expected)


def test_litert_takes_no_part_in_bfloat16_and_without_a_program(tmp_path: Path) -> None:
    for dtype, note in (("bfloat16", "LiteRT is not timed in bfloat16"), ("float32", "comes from an ONNX file")):
        with pytest.raises(ModelError, match=note):
            contenders.run_litert(Subject(None, tmp_path / "none.onnx", [], 1, dtype))


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


def test_a_source_that_has_moved_is_one_line_and_can_be_given(copied: Path, tuned_folder: Path, tmp_path: Path) -> None:
    network = with_source(copied, str(tmp_path / "gone.pt2"))
    with pytest.raises(ModelError, match=r"gone\.pt2, which .* is not there; give it as --model FILE"):
        open_origin(network)
    moved = shutil.copyfile(tuned_folder.parent / "net.pt2", tmp_path / "moved.pt2")
    assert open_origin(network, moved).origin["source"] == str(moved)


def test_a_bundle_is_found_where_it_was_and_another_one_is_refused(
    tiny_space: SearchSpace, tmp_path: Path, compiler: Compiler
) -> None:
    bundle = make_bundle(tiny_space, tmp_path, HOST, compiler)
    network = TunedNetwork.open(save_untuned(bundle, tmp_path / "net"))
    opened = open_origin(network)
    assert opened.origin["source"] == str(bundle)
    rows = by_name(benchmark_tuned(network, opened, BenchSettings({}, rounds=2)))
    assert (list(rows), rows[UNTUNED].note) == ([OWN, MODULE_ALONE, UNTUNED], "")
    (tmp_path / "second").mkdir()
    other = make_bundle(tiny_space, tmp_path / "second", HOST, compiler, tiny_space.largest)
    with pytest.raises(ModelError, match="is not the network that"):
        open_origin(network, other)
    moved = bundle.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match=r"bundle, which .* is not there; give it as --model FILE"):
        open_origin(network)
    assert open_origin(network, moved).origin["source"] == str(moved)


def test_a_folder_that_does_not_say_where_its_source_was_asks_for_it(copied: Path) -> None:
    with pytest.raises(ModelError, match=r"does not say where net\.pt2 lay; give it as --model FILE"):
        open_origin(with_source(copied, None))


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
