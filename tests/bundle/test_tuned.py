"""A tuned network's folder runs by itself, and each way in which it can be spoilt is one line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from networks import NUM_CLASSES, SHAPE, change_document

from chanas.bundle.tuned import DOCUMENT, MODULE, RANDOM_WEIGHTS, SOURCE, WEIGHTS, TunedNetwork
from chanas.errors import ChanasError, CheckpointError, ConfigError, TargetError
from chanas.models.sources.opening import open_model


def one_line(error: pytest.ExceptionInfo[ChanasError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("source", ["net.pt2", "other.onnx"])
def test_outputs_are_those_of_the_framework(tuned_onnx_folder: Path, source: str) -> None:
    place = tuned_onnx_folder.parent
    opened = open_model(place / source)
    network = TunedNetwork.open(place / Path(source).stem)
    for seed in (1, 2):
        inputs = opened.random_inputs(seed)
        (got,), (expected,) = network.run(*inputs), opened.answer(inputs)
        assert got.shape == (1, NUM_CLASSES)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_an_answer_stays_when_another_one_is_asked_for(tuned_folder: Path) -> None:
    network = TunedNetwork.open(tuned_folder)
    (first,) = network.run(np.ones(SHAPE, np.float32))
    kept = first.copy()
    (second,) = network.run(np.zeros(SHAPE, np.float32))
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(first, second)


def test_an_output_has_the_shape_of_the_document(copied: Path) -> None:
    change_document(copied, outputs=[{"name": "y", "shape": [NUM_CLASSES, 1], "dtype": "float32"}])
    (found,) = TunedNetwork.open(copied).run(np.ones(SHAPE, np.float32))
    assert found.shape == (NUM_CLASSES, 1)


def test_a_folder_of_an_older_version_runs(copied: Path) -> None:
    hashes = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))["hashes"]
    (copied / SOURCE).unlink()
    change_document(copied, hashes={name: hashes[name] for name in (MODULE, WEIGHTS)})
    (found,) = TunedNetwork.open(copied).run(np.ones(SHAPE, np.float32))
    assert found.shape == (1, NUM_CLASSES)


def test_calls_are_timed(tuned_folder: Path) -> None:
    seconds = TunedNetwork.open(tuned_folder).time_calls(4)
    assert len(seconds) == 4
    assert min(seconds) > 0


def test_inputs_are_drawn_as_for_the_network_that_was_opened(tuned_folder: Path) -> None:
    opened = open_model(tuned_folder.parent / "net.pt2")
    (x,) = TunedNetwork.open(tuned_folder).random_inputs(3)
    np.testing.assert_array_equal(x, opened.random_inputs(3)[0])


def test_ids_of_tokens_are_drawn_from_any_vocabulary(copied: Path) -> None:
    change_document(copied, inputs=[{"name": "ids", "shape": [1, 128], "dtype": "int64"}])
    (ids,) = TunedNetwork.open(copied).random_inputs()
    assert (ids.shape, ids.dtype) == ((1, 128), np.int64)
    assert set(ids.ravel()) == {0}


def test_another_number_of_inputs_is_refused(tuned_folder: Path) -> None:
    x = np.zeros(SHAPE, np.float32)
    with pytest.raises(ConfigError, match="expected 1 inputs of net, got 2") as error:
        TunedNetwork.open(tuned_folder).run(x, x)
    one_line(error)


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 3, 16, 17), (2, 3, 16, 16), ()])
def test_another_shape_is_refused_rather_than_broadcast(tuned_folder: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="1, 3, 16, 16") as error:
        TunedNetwork.open(tuned_folder).run(np.zeros(shape, np.float32))
    assert str(list(shape)) in one_line(error)


@pytest.mark.parametrize("dtype", ["complex64", "U1"])
def test_another_type_is_refused(tuned_folder: Path, dtype: str) -> None:
    with pytest.raises(ConfigError, match=r"expected input .* float32\[1, 3, 16, 16\], got ") as error:
        TunedNetwork.open(tuned_folder).run(np.zeros(SHAPE, dtype))
    one_line(error)


@pytest.mark.parametrize("name", [MODULE, WEIGHTS])
def test_a_missing_file_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(CheckpointError) as error:
        TunedNetwork.open(copied)
    assert f"{copied} lacks {name}; make it again with `chanas tune`" in one_line(error)


@pytest.mark.parametrize("name", [MODULE, WEIGHTS])
@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_a_file_that_was_changed_is_named(copied: Path, name: str, spoil: Callable[[bytes], bytes]) -> None:
    path = copied / name
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(CheckpointError) as error:
        TunedNetwork.open(copied)
    assert str(path) in one_line(error)


def test_files_of_two_networks_do_not_go_together(copied: Path, tuned_onnx_folder: Path) -> None:
    shutil.copyfile(tuned_onnx_folder / WEIGHTS, copied / WEIGHTS)
    with pytest.raises(CheckpointError, match="of another network"):
        TunedNetwork.open(copied)


def test_a_folder_that_is_none_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no folder of a tuned network.*chanas tune MODEL") as error:
        TunedNetwork.open(tmp_path)
    one_line(error)
    with pytest.raises(CheckpointError, match="does not exist") as error:
        TunedNetwork.open(tmp_path / "none")
    one_line(error)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 99}', '{"schema": 1, "name": "net"}'])
def test_a_damaged_document_is_one_line(copied: Path, text: str) -> None:
    (copied / DOCUMENT).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError) as error:
        TunedNetwork.open(copied)
    assert DOCUMENT in one_line(error)


@pytest.mark.parametrize("key", ["inputs", "hashes", "target", "parameters", "origin"])
def test_a_document_with_something_else_in_a_field_is_one_line(copied: Path, key: str) -> None:
    change_document(copied, **{key: 3})
    with pytest.raises(CheckpointError) as error:
        TunedNetwork.open(copied)
    assert key in one_line(error)


def test_a_network_of_another_device_is_opened_but_not_run(copied: Path) -> None:
    document = json.loads((copied / DOCUMENT).read_text(encoding="utf-8"))
    change_document(copied, target={**document["target"], "fingerprint": "0123456789ab", "device": "6502"})
    network = TunedNetwork.open(copied)
    assert network.target.device == "6502"
    with pytest.raises(TargetError, match="compiled for 6502") as error:
        network.run(np.zeros(SHAPE, np.float32))
    assert "run `chanas tune` here" in one_line(error)


ALONE = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "onnx", "onnxruntime"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Block())
import numpy as np
from chanas.bundle.tuned import TunedNetwork

x = np.load(sys.argv[2])
np.save(sys.argv[3], TunedNetwork.open(sys.argv[1]).run(x)[0])
"""


def test_it_runs_where_neither_torch_nor_onnx_can_be_imported(tuned_folder: Path, tmp_path: Path) -> None:
    opened = open_model(tuned_folder.parent / "net.pt2")
    (x,) = opened.random_inputs(3)
    np.save(tmp_path / "x.npy", x)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tuned_folder), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), opened.answer([x])[0], rtol=1e-4, atol=1e-5)


def test_random_weights_are_told(copied: Path) -> None:
    network = TunedNetwork.open(copied)
    assert network.remark == ""
    change_document(copied, origin={**network.document["origin"], "kind": "torchvision"})
    assert TunedNetwork.open(copied).remark == RANDOM_WEIGHTS
