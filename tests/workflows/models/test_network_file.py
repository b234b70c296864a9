"""A found network as a file for other runtimes: it computes what PyTorch computes, or is not written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chanas.core.arch import SearchSpace
from chanas.errors import CheckpointError, ConfigError, MeasureError, ModelError
from chanas.files.run import RunDirectory
from chanas.measuring.worker.compiler import Compiler
from chanas.models.sources.opening import open_model
from chanas.network.static import StaticNetwork
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.published.runs import keep
from chanas.workflows.models.network_file import FORMATS, INPUT, NOTE, Format, FoundNetwork, export_file

from ...bundle.test_codesign import CLASSES, HOST, edit, images, logits_of_torch, make_bundle

SCRIPT = FORMATS["torchscript"]


@pytest.fixture(scope="module")
def bundle(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Path:
    return make_bundle(tiny_space, tmp_path_factory.mktemp("found"), HOST, compiler)


def test_a_torchscript_file_computes_what_the_bundle_computes_and_is_timed_beside_it(
    bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "net.pt"
    file = export_file(bundle, out, "torchscript")
    assert file.max_error is not None
    assert file.max_error < 1e-5
    assert file.own_s is not None
    assert file.file_s is not None
    assert f"{file.file_s / file.own_s:.2f}x" in file.describe_cost()
    notes = {NOTE: ""}
    jit: Any = torch.jit
    with pytest.warns(FutureWarning, match="deprecated"):
        network = jit.load(out, _extra_files=notes)
    for num in (1, 4):
        x = images(num, 12)
        np.testing.assert_allclose(network(torch.from_numpy(x)).numpy(), logits_of_torch(bundle, x), atol=1e-5)
    note = json.loads(notes[NOTE])
    assert note["class_names"] == list(CLASSES)
    assert note["preprocess"]["resolution"] == 12
    assert [path.name for path in tmp_path.iterdir()] == ["net.pt"]


@pytest.mark.slow
def test_an_onnx_file_has_an_open_batch_and_says_what_it_is(bundle: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    file = export_file(bundle, tmp_path / "net.onnx", "onnx")
    model = onnx.load(file.path)
    onnx.checker.check_model(model)
    (taken,) = model.graph.input
    assert taken.name == INPUT
    assert [d.dim_value for d in taken.type.tensor_type.shape.dim] == [0, 3, 12, 12]
    assert json.loads({p.key: p.value for p in model.metadata_props}[NOTE])["architecture"] == file.key
    opened = open_model(str(file.path), {INPUT: (1, 3, 12, 12)})
    x = images(1, 12)
    np.testing.assert_allclose(opened.answer([x])[0], logits_of_torch(bundle, x), atol=1e-5)


@pytest.mark.slow
def test_a_program_for_one_image_is_what_tune_opens(bundle: Path, tmp_path: Path) -> None:
    file = export_file(bundle, tmp_path / "net.pt2", "pt2", batch=1)
    x = images(1, 12)
    np.testing.assert_allclose(open_model(str(file.path), {}).answer([x])[0], logits_of_torch(bundle, x), atol=1e-5)
    assert file.file_s is not None


# ---- what is refused ------------------------------------------------------------------------------------------------
def write_other_weights(found: FoundNetwork, batch: int | None, file: Path) -> None:
    other = {name: value + 0.1 for name, value in found.module.state_dict().items()}
    network = StaticNetwork(found.bundle.blocks if found.bundle else ()).eval()
    network.load_state_dict(other)
    SCRIPT.write(dataclasses.replace(found, module=network), batch, file)


def refuse_to_write(found: FoundNetwork, batch: int | None, file: Path) -> None:
    raise RuntimeError("no such\noperator")


def formats(**changes: Any) -> dict[str, Format]:
    return {"torchscript": dataclasses.replace(SCRIPT, **changes)}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"write": write_other_weights}, MeasureError, "nothing was written"),
        ({"write": refuse_to_write}, ModelError, "RuntimeError: no such operator"),
    ],
)
def test_what_cannot_be_written_leaves_what_was_there(
    bundle: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    older = export_file(bundle, tmp_path / "net.pt", "torchscript", formats=formats()).path.read_bytes()
    with pytest.raises(error, match=words):
        export_file(bundle, tmp_path / "net.pt", "torchscript", formats=formats(**changes))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("net.pt", older)]


def test_without_its_runtime_a_file_is_written_and_says_that_it_was_not_compared(bundle: Path, tmp_path: Path) -> None:
    file = export_file(bundle, tmp_path / "net.pt", "torchscript", formats=formats(reader="no_package"))
    assert file.path.is_file()
    assert (file.max_error, file.own_s) == (None, None)
    assert file.describe_check().startswith("not compared")
    assert file.describe_cost().startswith("not measured")


@pytest.mark.parametrize(("name", "batch"), [("net.onnx", None), ("net", None), ("net.pt", 1), ("net.pt", 0)])
def test_another_suffix_or_batch_is_refused(bundle: Path, tmp_path: Path, name: str, batch: int | None) -> None:
    with pytest.raises(ConfigError, match="expected"):
        export_file(bundle, tmp_path / name, "torchscript", batch=batch)


def test_what_is_no_found_network_with_weights_is_refused(
    bundle: Path, tiny_space: SearchSpace, tmp_path: Path
) -> None:
    bare, run = tmp_path / "bare", RunDirectory(tmp_path / "run")
    bare.mkdir()
    for file in bundle.iterdir():
        (bare / file.name).write_bytes(file.read_bytes())
    hashes = json.loads((bare / "codesign.json").read_text())["hashes"]
    edit(bare, hashes={name: digest for name, digest in hashes.items() if name != "weights.safetensors"})
    keep(run, Supernet(tiny_space, 1000).eval(), {"kind": "test"})
    for source, words in ((bare, "no weights"), (run.root, "whole supernet"), (tmp_path, "is none")):
        with pytest.raises(CheckpointError, match=words):
            export_file(source, tmp_path / "net.pt", "torchscript")
