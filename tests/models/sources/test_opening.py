"""Networks as users bring them: good ones open, and each kind of bad one ends in one line that says what to do."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

from chanas.errors import ModelError
from chanas.models.graph import Graph
from chanas.models.reading.reader import read_graph
from chanas.models.sources.opening import open_model
from chanas.models.sources.torch_models import fill_zeros, take_statistics

from ..onnx_files import onnx_model

Nodes = list[onnx.NodeProto]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).relu()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "net.pt2"
    torch.manual_seed(0)
    torch.export.save(torch.export.export(Net().eval(), (torch.zeros(1, 3, 8, 8),)), path)
    return path


def save_onnx(path: Path, nodes: Nodes | None = None, shape: tuple[int | str, ...] = (1, 3, 8, 8)) -> Path:
    """A convolution in an ONNX file, or other nodes from `x` to `y`."""
    nodes = nodes or [helper.make_node("Conv", ["x", "w"], ["y"], name="first")]
    onnx.save(onnx_model(nodes, [("x", "float32", shape)], ["y"], {"w": np.ones((4, 3, 3, 3), np.float32)}), path)
    return path


def test_a_program_of_torch_export_opens(exported: Path) -> None:
    model = open_model(exported)
    assert [i.describe() for i in model.inputs] == ["x float32[1, 3, 8, 8]"]
    assert model.answer(model.random_inputs())[0].shape == (1, 4, 6, 6)
    assert model.program is not None
    assert (model.origin["kind"], model.origin["source"]) == ("torch.export", str(exported))
    assert len(model.origin["sha256"]) == 64


def test_an_onnx_file_opens(tmp_path: Path) -> None:
    model = open_model(save_onnx(tmp_path / "net.onnx"))
    (out,) = model.answer([np.ones((1, 3, 8, 8), np.float32)])
    assert (model.name, model.program, model.origin["source"]) == ("net", None, str(tmp_path / "net.onnx"))
    np.testing.assert_allclose(out, np.full((1, 4, 6, 6), 27.0))


def read(path: Path) -> Graph:
    opened = open_model(path)
    return read_graph(opened.proto, opened.inputs)


def test_an_open_shape_is_refused_with_the_option_that_closes_it(tmp_path: Path) -> None:
    path = save_onnx(tmp_path / "net.onnx", shape=("batch", 3, 8, 8))
    with pytest.raises(ModelError, match="--shape x=1,3,8,8"):
        open_model(path)
    assert open_model(path, {"x": (2, 3, 8, 8)}).inputs[0].shape == (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        (("batch", 3, "h", "w"), "1,3,HEIGHT,WIDTH"),
        (("n", "h", "w", 3), "1,HEIGHT,WIDTH,3"),
        (("n", "sequence"), "1,SEQUENCE"),
        ((4, 3, "h", 8), "4,3,HEIGHT,8"),
        (("n", 3, "time-steps"), "1,3,AXIS2"),
    ],
)
def test_an_open_axis_is_a_word_and_never_one_pixel(tmp_path: Path, shape: tuple[Any, ...], wanted: str) -> None:
    with pytest.raises(ModelError, match=f"--shape x={wanted},"):
        open_model(save_onnx(tmp_path / "net.onnx", shape=shape))


def test_missing_weights_beside_the_file_are_named(tmp_path: Path) -> None:
    path = save_onnx(tmp_path / "net.onnx")
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert open_model(path).inputs
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin"):
        open_model(path)


def with_nodes(*nodes: tuple[str, list[str], list[str]], **options: str) -> Callable[[Path], None]:
    return lambda path: save_onnx(path, [helper.make_node(*node, **options) for node in nodes])


def changed(change: Callable[[onnx.ModelProto], None]) -> Callable[[Path], None]:
    """Write a network that is right but for a change."""

    def write(path: Path) -> None:
        model = onnx.load(save_onnx(path))
        change(model)
        onnx.save(model, path)

    return write


def of_the_future(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1


def without_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def cut(path: Path) -> None:
    path.write_bytes(save_onnx(path).read_bytes()[: path.stat().st_size // 2])


def enlarged(path: Path) -> None:
    """Make a file larger than memory; it takes no place on the disk."""
    with open(save_onnx(path), "r+b") as file:
        file.truncate(1 << 42)


def anything(path: Path) -> None:
    path.write_bytes(b"anything")


def in_a_folder(path: Path) -> None:
    path.mkdir()
    anything(path / "saved_model.pb")


REFUSED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "an unknown operator": (
        "net.onnx",
        with_nodes(("Fancy", ["x"], ["y"]), name="here", domain="example.org"),
        r"example.org.Fancy \(node here\)",
    ),
    "shapes that contradict each other": ("net.onnx", lambda path: save_onnx(path, shape=(1, 5, 8, 8)), "Conv"),
    "a value that nothing gives": (
        "net.onnx",
        with_nodes(("Conv", ["x", "lost"], ["y"]), name="first"),
        r"Conv \(node first\) reads lost",
    ),
    "a circle": (
        "net.onnx",
        with_nodes(("Add", ["x", "b"], ["y"]), ("Neg", ["y"], ["b"])),
        r"in a circle \(Add \(node y\), Neg \(node b\)\)",
    ),
    "a value given twice": ("net.onnx", with_nodes(("Neg", ["x"], ["y"]), ("Relu", ["x"], ["y"])), "gives y twice"),
    "an input given again": ("net.onnx", with_nodes(("Relu", ["x"], ["x"]), ("Relu", ["x"], ["y"])), "gives x twice"),
    "an opset of the future": ("net.onnx", changed(of_the_future), "lower opset_version"),
    "no outputs": ("net.onnx", changed(without_outputs), "no outputs"),
    "a part of a file": ("net.onnx", cut, "net.onnx"),
    "more than memory holds": ("net.onnx", enlarged, "memory"),
    "another kind of file": ("net.xml", anything, r"FILE\.onnx"),
    "TFLite": ("net.tflite", anything, "tf2onnx.convert .*--tflite"),
    "Keras": ("net.keras", anything, "model.export"),
    "older Keras": ("net.H5", anything, "model.export"),
    "TensorFlow": ("saved_model.pb", anything, "--saved-model"),
    "a folder of TensorFlow": ("net", in_a_folder, "--saved-model"),
    "weights": ("net.safetensors", anything, "weights alone"),
    "Core ML": ("net.mlmodel", anything, "write it as ONNX"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    name, write, says = REFUSED[case]
    write(tmp_path / name)
    with pytest.raises(ModelError, match=says) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_part_of_a_program_is_refused(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(exported.read_bytes()[: exported.stat().st_size // 2])
    with pytest.raises(ModelError):
        open_model(tmp_path / "net.pt2")


def test_a_shape_for_an_input_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="image"):
        open_model(save_onnx(tmp_path / "net.onnx"), {"image": (1, 3, 8, 8)})


class Trap:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.onnx", "net.pt2", "net"])
@pytest.mark.parametrize("plain", [False, True], ids=["torch", "pickle"])
def test_a_pickle_is_refused_unopened(tmp_path: Path, name: str, plain: bool) -> None:
    path, sprung = tmp_path / name, tmp_path / "sprung"
    if plain:
        path.write_bytes(pickle.dumps(Trap(sprung)))
    else:
        torch.save(Trap(sprung), path)
    with pytest.raises(ModelError):
        open_model(path)
    assert not sprung.exists()


@pytest.mark.parametrize("part", ["sample", "weight"])
def test_a_pickle_inside_a_program_is_never_opened(exported: Path, tmp_path: Path, part: str) -> None:
    path, sprung, packed = tmp_path / "net.pt2", tmp_path / "sprung", io.BytesIO()
    torch.save(Trap(sprung), packed)
    with zipfile.ZipFile(exported) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if part == "sample" and "sample_inputs" in name:
                content = packed.getvalue()
            if part == "weight" and name.endswith("weights_config.json"):
                config = json.loads(content)
                for entry in config["config"].values():
                    entry["use_pickle"] = True
                content = json.dumps(config).encode()
            if part == "weight" and "/weight_" in name:
                content = packed.getvalue()
            new.writestr(name, content)
    if part == "sample":  # left out: the network is the same without
        assert open_model(path).inputs
    else:
        with pytest.raises(ModelError, match="pickle"):
            open_model(path)
    assert not sprung.exists()


@pytest.mark.parametrize("source", ["no-such.onnx", ".", "torchvision:no_such_network"])
def test_what_is_not_there_is_said(source: str) -> None:
    with pytest.raises(ModelError, match=r"no-such\.onnx does not exist|is a folder|unknown network of torchvision"):
        open_model(source)


def test_a_program_of_open_shapes_is_refused(tmp_path: Path) -> None:
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=8)}}
    program = torch.export.export(Net().eval(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(ModelError, match="dynamic_shapes"):
        open_model(tmp_path / "net.pt2")


@pytest.mark.parametrize("shapes", [{"x": (1, 3, 4, 4)}, {"image": (1, 3, 8, 8)}])
def test_a_program_keeps_the_shape_that_it_was_exported_for(shapes: dict[str, tuple[int, ...]], exported: Path) -> None:
    assert open_model(exported, {"x": (1, 3, 8, 8)}).inputs[0].shape == (1, 3, 8, 8)
    with pytest.raises(ModelError, match=r"was exported for x float32\[1, 3, 8, 8\]; leave out --shape"):
        open_model(exported, shapes)


# ---- what goes in and out, and what is computed ---------------------------------------------------------------------
class ByName(Net):
    """Takes and gives dictionaries, and an input by name alone."""

    def forward(self, maps: dict[str, torch.Tensor], *, z: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore
        return {"sum": self.conv(maps["a"] + 2 * maps["b"]), "z": z - 1}


def test_dictionaries_and_named_inputs_are_taken_apart(tmp_path: Path) -> None:
    a, b, z = torch.randn(3, 1, 3, 8, 8)
    network = ByName().eval()
    torch.export.save(torch.export.export(network, ({"a": a, "b": b},), {"z": z}), tmp_path / "net.pt2")
    model = open_model(tmp_path / "net.pt2")
    assert model.outputs == ("sum", "z")
    expected = network({"a": a, "b": b}, z=z)
    for got, name in zip(model.answer([a.numpy(), b.numpy(), z.numpy()]), ("sum", "z"), strict=True):
        np.testing.assert_allclose(got, expected[name].detach().numpy(), rtol=1e-6)


class Returning(nn.Module):
    """A convolution whose output something is done to."""

    def __init__(self, then: Callable[[torch.Tensor], Any], layer: nn.Module) -> None:
        super().__init__()
        self.then, self.layer = then, layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.then(self.layer(x))


CONV = nn.Conv2d(3, 4, 3)


class Scaled(Net):
    def forward(self, x: torch.Tensor, factor: int = 2) -> torch.Tensor:  # type: ignore
        return self.conv(x) * factor


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Scaled().eval(), "2, which is no tensor"),
        (Returning(lambda x: (x, None), CONV), "None, which is no tensor"),
        (Returning(lambda x: (x, 3), CONV), "3, which is no tensor"),
        (Returning(lambda x: torch.linalg.svd(x)[1], CONV), r"_linalg_svd"),
        (nn.Sequential(CONV, nn.Dropout(0.5)).train(), r"for training \(dropout.default at dropout\).* eval\(\)"),
        (nn.Sequential(CONV, nn.BatchNorm2d(4)).train(), r"for training \(.* at batch_norm\).* eval\(\)"),
    ],
)
def test_what_cannot_be_tuned_is_named_with_its_place(tmp_path: Path, network: nn.Module, message: str) -> None:
    given = (torch.zeros(1, 3, 8, 8), *([2] if isinstance(network, Scaled) else []))
    torch.export.save(torch.export.export(network, given), tmp_path / "net.pt2")
    with pytest.raises(ModelError, match=message):
        open_model(tmp_path / "net.pt2")


@pytest.mark.parametrize("width", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_another_width_are_computed_in_float32(tmp_path: Path, width: torch.dtype) -> None:
    torch.export.save(
        torch.export.export(Net().eval().to(width), (torch.zeros(1, 3, 8, 8, dtype=width),)), tmp_path / "n.pt2"
    )
    model, graph = open_model(tmp_path / "n.pt2"), read(tmp_path / "n.pt2")
    assert (
        {n.dtype for n in graph.nodes}
        == {model.inputs[0].dtype}
        == {model.answer(model.random_inputs())[0].dtype.name}
        == {"float32"}
    )


def test_nodes_may_stand_in_any_order(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
    path = save_onnx(tmp_path / "net.onnx", nodes)
    assert [node.op for node in read(path).nodes] == ["negative", "activation"]
    assert open_model(path).answer([np.ones((1, 3, 8, 8), np.float32)])[0].max() == 0


def test_a_network_of_torchvision_takes_the_shape_that_is_asked_for() -> None:
    model = open_model("torchvision:squeezenet1_1", {"image": (1, 3, 64, 64)})
    assert model.inputs[0].shape == (1, 3, 64, 64)
    assert np.abs(model.answer(model.random_inputs())[0]).max() > 1e-3


class Threads(nn.Module):
    """Notes on how many threads it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.found = nn.BatchNorm2d(3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.found = torch.get_num_threads()
        return self.norm(x)


def test_statistics_do_not_depend_on_the_number_of_threads() -> None:
    network, before = Threads().eval(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        take_statistics(network, (1, 3, 8, 8))
        assert (network.found, torch.get_num_threads()) == (1, 2)
    finally:
        torch.set_num_threads(before)
    assert network.norm.running_mean.abs().max() > 0


def test_weights_that_begin_as_zeros_are_filled_so_that_outputs_tell_something() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    nn.init.zeros_(network[1].weight)
    first = network[0].weight.clone()
    fill_zeros(network)
    assert network[1].weight.any()
    assert torch.equal(network[0].weight, first)


def test_a_network_that_remembers_is_refused_and_one_that_writes_to_its_input_is_not(tmp_path: Path) -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore
            self.calls.add_(1.0)
            return self.conv(x) + self.calls

    class Centred(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore
            return self.conv(x.sub_(0.5))

    for name, network in (("counting", Counting()), ("centred", Centred())):
        program = torch.export.export(network.eval(), (torch.zeros(1, 3, 8, 8),))
        torch.export.save(program, tmp_path / f"{name}.pt2")
    with pytest.raises(ModelError, match="writes to calls in each call"):
        open_model(tmp_path / "counting.pt2")
    model = open_model(tmp_path / "centred.pt2")
    inputs = model.random_inputs()
    np.testing.assert_array_equal(model.answer(inputs)[0], model.answer(inputs)[0])
