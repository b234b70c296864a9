"""chanas/bundle/codesign.py: a bundle predicts without torch what PyTorch predicts, and a damaged one says so."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from chanas.bundle.benchmark import MODULE_ALONE, BenchmarkRow, benchmark
from chanas.bundle.codesign import CoDesign, write_bundle
from chanas.bundle.document import SCHEMA
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import Float32Array
from chanas.core.target import HardwareTarget
from chanas.devices import host
from chanas.devices.cores import limited_to
from chanas.devices.host import load_target
from chanas.devices.target_files import describe_target
from chanas.errors import ChanasError, CheckpointError, DataError, TargetError
from chanas.files.writing import file_digest
from chanas.measuring.messages import Build, NetworkAt
from chanas.measuring.worker.compiler import Compiler
from chanas.network.preprocess import Preprocess
from chanas.prescheduler.tables.networks import block_points
from chanas.workflows.searching.agreement import check_module

from ..compiler.workbench import HOST, network_job, random_lut

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("ant", "bee", "cat", "dog", "eel")
DOCUMENT, WEIGHTS, MODULE = "codesign.json", "weights.safetensors", "module.so"
Change = Callable[[Path], object]


def make_bundle(
    tiny_space: SearchSpace,
    folder: Path,
    target: HardwareTarget,
    compiler: Compiler,
    architecture: Architecture | None = None,
    **facts: Any,
) -> Path:
    """A compiled network of random weights and schedules, in a bundle; by default the smallest. `facts` are entries of
    its document."""
    architecture = architecture or tiny_space.smallest
    blocks = architecture.blocks(tiny_space, len(facts.get("class_names", CLASSES)))
    job, points = (
        network_job(blocks, folder / "network.so"),
        block_points(random_lut(tiny_space, blocks, target), blocks),
    )
    request = Build(target=target, what=NetworkAt(blocks, points), path=job.library)
    compiler.result(request, "the network")
    tensors = {f"blocks.{i}.{name}": v for i, part in enumerate(job.parameters) for name, v in part.items()}
    preprocess = Preprocess(architecture.resolution, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    document = {
        "space": tiny_space.to_json(),
        "architecture": architecture.to_json(),
        "targets": [{"target": target.to_json()}],
        "class_names": list(CLASSES),
        "preprocess": preprocess.to_json(),
        "hashes": {"lut": "0123456789abcdef"},
        **facts,
    }
    write_bundle(folder / "bundle", document, tensors, [job.library])
    return folder / "bundle"


@pytest.fixture(scope="module")
def bundle(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Path:
    """A float32 bundle."""
    return make_bundle(tiny_space, tmp_path_factory.mktemp("codesign"), HOST, compiler)


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that may be damaged."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in bundle.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def images(num: int, resolution: int) -> Float32Array:
    return np.random.default_rng(0).standard_normal((num, 3, resolution, resolution), dtype=np.float32)


def logits_of_torch(bundle: Path, x: Float32Array) -> Float32Array:
    with torch.inference_mode():
        logits: Float32Array = CoDesign.load(bundle).torch_module()(torch.from_numpy(x)).numpy()
    return logits


def edit(folder: Path, **changes: Any) -> None:
    document = json.loads((folder / DOCUMENT).read_text())
    (folder / DOCUMENT).write_text(json.dumps({**document, **changes}))


def edit_target(folder: Path, **changes: Any) -> None:
    (part,) = json.loads((folder / DOCUMENT).read_text())["targets"]
    edit(folder, targets=[{**part, **changes}])


# ---- what a bundle does ---------------------------------------------------------------------------------------------
WITHOUT_TORCH = """
import importlib.abc, json, sys

class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] == "torch":
            raise ModuleNotFoundError(fullname)

sys.meta_path.insert(0, NoTorch())

import numpy as np
from pathlib import Path
from chanas.bundle.codesign import CoDesign

folder, bundle = Path(sys.argv[1]), CoDesign.load(sys.argv[2])
np.save(folder / "logits.npy", bundle.predict(np.load(folder / "images.npy")))
predictions = bundle.classify(sorted(folder.glob("*.png")))
print(json.dumps([[p.class_index, p.class_name, p.probability] for p in predictions]))
assert "torch" not in sys.modules
"""


def test_a_process_without_torch_predicts_what_pytorch_predicts(bundle: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for i, mode in enumerate(("RGB", "RGB", "L")):
        pixels = rng.integers(0, 256, (20, 30, 3) if mode == "RGB" else (20, 30), dtype=np.uint8)
        Image.fromarray(pixels, mode=None).save(tmp_path / f"{i}.png")
    x = images(7, CoDesign.load(bundle).architecture.resolution)
    np.save(tmp_path / "images.npy", x)
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path), str(bundle)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = logits_of_torch(bundle, x)
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 0.01  # or anything would be equal
    preprocess = CoDesign.load(bundle).preprocess
    files = sorted(tmp_path.glob("*.png"))
    pictures = np.stack([preprocess(Image.open(file).convert("RGB")) for file in files])
    shares = torch.from_numpy(logits_of_torch(bundle, pictures)).softmax(1)
    for (index, name, probability), share in zip(json.loads(done.stdout), shares, strict=True):
        assert index == int(share.argmax())
        assert name == CLASSES[index]
        assert probability == pytest.approx(float(share.max()), rel=1e-3)


def test_a_benchmark_has_a_row_for_each_contender_even_one_that_does_not_run(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor", None)  # a PyTorch without its compiler
    own, alone, eager, compiled = benchmark(CoDesign.load(bundle), rounds=2)
    assert (own.name, own.ratio) == ("chanas", 1.0)
    assert alone.name == MODULE_ALONE
    assert alone.median_s is not None
    assert eager.name == "PyTorch eager"
    assert own.median_s is not None
    assert eager.median_s is not None
    assert eager.ratio == pytest.approx(eager.median_s / own.median_s)
    assert (compiled.name, compiled.median_s, compiled.ratio) == ("torch.compile", None, None)
    assert compiled.note.startswith("did not compile: ModuleNotFoundError")


@pytest.fixture
def for_a_gpu(tiny_space: SearchSpace) -> CoDesign:
    """A bundle whose module is for a GPU."""
    bundle = object.__new__(CoDesign)
    bundle.target, bundle.space, bundle.architecture = describe_target("h100"), tiny_space, tiny_space.smallest
    return bundle


def test_a_bundle_for_a_gpu_is_one_line_where_there_is_none(
    for_a_gpu: CoDesign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "find_gpu", lambda: None)
    with pytest.raises(TargetError, match=r"^no NVIDIA GPU was found on this machine"):
        benchmark(for_a_gpu)


def test_a_pytorch_without_cuda_is_a_row_that_says_so(for_a_gpu: CoDesign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(CoDesign, "torch_module", lambda _: torch.nn.Identity())
    for_a_gpu.__dict__["_run"] = lambda image: image
    own, *peers = benchmark(for_a_gpu, rounds=2, shared=None)
    assert own.ratio == 1.0
    assert peers == [
        BenchmarkRow(n, None, None, "PyTorch has no CUDA here") for n in ("PyTorch eager", "torch.compile")
    ]
    assert len(benchmark(for_a_gpu, with_compile=False, rounds=2, shared=None)) == 2


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_benchmark_gives_threads_and_cores_back(num_threads: int) -> None:
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    with pytest.raises(KeyboardInterrupt), limited_to(num_threads):
        assert torch.get_num_threads() == num_threads
        assert os.sched_getaffinity(0) == set(sorted(cores)[:num_threads])
        raise KeyboardInterrupt
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == (threads, cores)


def test_a_bundle_says_what_it_holds(bundle: Path, tiny_space: SearchSpace) -> None:
    loaded = CoDesign.load(str(bundle))
    assert (loaded.architecture, loaded.space, loaded.target) == (tiny_space.smallest, tiny_space, HOST)
    assert loaded.class_names == CLASSES
    assert loaded.blocks == tiny_space.smallest.blocks(tiny_space, len(CLASSES))
    assert loaded.document["schema"] == SCHEMA
    assert loaded.document["hashes"] == {
        "lut": "0123456789abcdef",
        WEIGHTS: file_digest(bundle / WEIGHTS),
        MODULE: file_digest(bundle / MODULE),
    }
    assert {file.name for file in bundle.iterdir()} == {DOCUMENT, WEIGHTS, MODULE}


def test_the_torch_module_is_in_evaluation_mode(bundle: Path) -> None:
    network = CoDesign.load(bundle).torch_module()
    assert not any(m.training for m in network.modules())


# ---- what is refused ------------------------------------------------------------------------------------------------
def cut(name: str, length: int) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:length])


def flip(name: str) -> Change:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return change


DAMAGES: dict[str, tuple[Change, str]] = {
    "weights cut short": (cut(WEIGHTS, 500), rf"{WEIGHTS} is cut short or was changed .*; make the bundle again"),
    "module cut short": (cut(MODULE, -1), rf"{MODULE} is cut short or was changed .*; make the bundle again"),
    "one bit of the weights": (flip(WEIGHTS), rf"{WEIGHTS} is cut short or was changed"),
    "one bit of the module": (flip(MODULE), rf"{MODULE} is cut short or was changed"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), rf"lacks {WEIGHTS}; make it again with `chanas search`"),
    "no module": (lambda folder: (folder / MODULE).unlink(), rf"lacks {MODULE}; make it again with `chanas search`"),
    "no document": (lambda folder: (folder / DOCUMENT).unlink(), rf"expected a bundle \({DOCUMENT}\).* is none"),
    "document cut short": (cut(DOCUMENT, 100), rf"bundle document .*{DOCUMENT} is cut short or damaged"),
    "document empty": (cut(DOCUMENT, 0), rf"bundle document .*{DOCUMENT} is cut short or damaged"),
    "a list": (lambda folder: edit_text(folder, "[]"), rf"{DOCUMENT} is not written as expected: expected an object"),
    "no schema": (
        lambda folder: edit_text(folder, "{}"),
        rf"{DOCUMENT} is not written as expected: schema is missing",
    ),
    "another schema": (
        lambda folder: edit(folder, schema=99),
        rf"expected schema {SCHEMA} of bundle document .*{DOCUMENT}, got 99",
    ),
    "no hashes": (lambda folder: edit(folder, hashes={}), r"its hash differs from the one in"),
    "target in words": (
        lambda folder: edit_target(folder, target="cpu"),
        rf'{DOCUMENT} is not written as expected: targets.0.target: expected an object, got "cpu"; make the',
    ),
    "no target": (lambda folder: edit(folder, targets=[]), rf"{DOCUMENT} is not written as expected: IndexError"),
    "a module elsewhere": (
        lambda folder: edit_target(folder, module="../module.so"),
        r"names a module outside its folder: \.\./module\.so",
    ),
    "architecture in words": (lambda folder: edit(folder, architecture="big"), "architecture: expected an object, got"),
    "an architecture of another space": (
        lambda folder: edit(folder, architecture={"key": "r999-w1-k3e6"}),
        "architecture r999-w1-k3e6 is not in space 'tiny': resolution 999",
    ),
}


def edit_text(folder: Path, text: str) -> None:
    (folder / DOCUMENT).write_text(text)


@pytest.mark.parametrize(("change", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_bundle_is_one_line_that_says_what_is_wrong(copy: Path, change: Change, message: str) -> None:
    change(copy)
    with pytest.raises(ChanasError, match=message) as caught:
        CoDesign.load(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("exists", [True, False])
def test_what_is_no_folder_is_no_bundle(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "bundle"
    if exists:
        path.write_text("a file")
    fault = "is a file; expected" if exists else "does not exist"
    with pytest.raises(CheckpointError, match=rf"bundle .* {fault}.*; `chanas search` makes one"):
        CoDesign.load(path)


def test_a_module_of_another_processor_is_not_run(copy: Path) -> None:
    edit_target(copy, target={**HOST.to_json(), "device": "Z80", "fingerprint": "0123456789ab"})
    loaded = CoDesign.load(copy)
    message = (
        rf"compiled for Z80 \(0123456789ab\), this is .* \({HOST.fingerprint}\), another processor \(device Z80 there, "
    )
    with pytest.raises(TargetError, match=message):
        loaded.predict(images(1, loaded.architecture.resolution))


@pytest.mark.parametrize("shape", [(1, 3, 12, 13), (1, 1, 12, 12), (3, 12, 12), (1, 3, 16, 16), (12,)])
def test_images_of_another_shape_are_refused(bundle: Path, shape: tuple[int, ...]) -> None:
    message = r"expected images of shape \[N, 3, 12, 12\], got \[" + ", ".join(map(str, shape))
    with pytest.raises(DataError, match=message):
        CoDesign.load(bundle).predict(np.zeros(shape, dtype=np.float32))


def test_a_bundle_that_was_made_anew_is_not_the_one_that_the_process_has_loaded(
    bundle: Path, tiny_space: SearchSpace, tmp_path: Path, compiler: Compiler
) -> None:
    made = tmp_path / "bundle"
    shutil.copytree(bundle, made)
    other = dataclasses.replace(tiny_space.smallest, resolution=tiny_space.largest.resolution)
    for architecture in (tiny_space.smallest, other):
        if architecture is other:
            assert make_bundle(tiny_space, tmp_path, HOST, compiler, other) == made
        x = images(1, architecture.resolution)
        np.testing.assert_allclose(CoDesign.load(made).predict(x), logits_of_torch(made, x), rtol=1e-4, atol=1e-4)


def test_no_images_have_no_predictions(bundle: Path) -> None:
    loaded = CoDesign.load(bundle)
    assert loaded.predict(np.zeros((0, 3, 12, 12), dtype=np.float32)).shape == (0, len(CLASSES))
    assert loaded.classify([]) == []


def test_an_image_is_a_path_an_image_of_pillow_or_an_array(bundle: Path, tmp_path: Path) -> None:
    loaded, pixels = CoDesign.load(bundle), np.random.default_rng(3).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    file = tmp_path / "a.png"
    Image.fromarray(pixels).save(file)
    expected = loaded.classify(file)
    ways = [str(file), Image.fromarray(pixels), pixels, np.dstack([pixels, np.full((20, 30), 255, np.uint8)])]
    assert loaded.classify(ways) == 4 * [expected]
    assert [loaded.classify(way) for way in ways] == 4 * [expected]


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (np.zeros((3, 8, 8), np.float32), r"image 0, got float32\[3, 8, 8\]"),
        (np.zeros((8, 0, 3), np.uint8), "0 × 8 pixels"),
        (np.full((8, 8), np.nan, np.float32), "image 0 .*not finite"),
        (b"png", "image 0, got bytes"),
    ],
    ids=str,
)
def test_what_is_no_image_is_refused_by_name(bundle: Path, image: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        CoDesign.load(bundle).classify([image])


def test_a_missing_image_is_refused_by_name(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"image .*nothing\.png does not exist"):
        CoDesign.load(bundle).classify([tmp_path / "nothing.png"])


def test_weights_of_another_network_are_refused_by_name(copy: Path) -> None:
    loaded = CoDesign.load(copy)
    del loaded.tensors["blocks.0.conv.conv.weight"]
    with pytest.raises(CheckpointError, match=r"weights\.safetensors lacks blocks\.0\.conv\.conv\.weight"):
        loaded.torch_module()
    with pytest.raises(CheckpointError, match=r"parameter conv\.conv\.weight of block stem-.* is missing"):
        _ = loaded._parameters


# ---- writing --------------------------------------------------------------------------------------------------------
def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    "spoil",
    [
        {"modules": [Path("/nowhere/module.so")]},
        {"document": {"targets": [{"target": HOST.to_json()}], "latency_s": math.nan}},
        {"tensors": {"w": "not an array"}},
    ],
    ids=["no module", "a document that is no JSON", "no tensors"],
)
def test_an_interrupted_write_leaves_the_old_bundle_whole(copy: Path, spoil: dict[str, Any]) -> None:
    before = contents(copy)
    document = {"targets": [{"target": HOST.to_json()}]}
    whole = {"document": document, "tensors": {"w": np.ones(3, np.float32)}, "modules": [copy / MODULE]}
    new: dict[str, Any] = {**whole, **spoil}
    with pytest.raises(Exception, match=r"."):
        write_bundle(copy, **new)
    assert contents(copy) == before
    assert [p.name for p in copy.parent.iterdir()] == [copy.name]
    CoDesign.load(copy)


def test_ctrl_c_while_writing_leaves_the_old_bundle_whole(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = contents(copy)
    monkeypatch.setattr("chanas.bundle.codesign.file_digest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(copy, {"targets": [{"target": HOST.to_json()}]}, {"w": np.ones(3, np.float32)}, [copy / MODULE])
    assert contents(copy) == before
    assert [p.name for p in copy.parent.iterdir()] == [copy.name]


def test_a_new_bundle_takes_the_place_of_the_old_one(bundle: Path, copy: Path) -> None:
    document = {**json.loads((bundle / DOCUMENT).read_text()), "class_names": list("abcde")}
    write_bundle(copy, document, CoDesign.load(bundle).tensors, [bundle / MODULE])
    assert CoDesign.load(copy).class_names == tuple("abcde")


# ---- dtypes ---------------------------------------------------------------------------------------------------------
def test_a_bundle_in_bfloat16_predicts_nearly_what_pytorch_does(
    tiny_space: SearchSpace, tmp_path: Path, compiler: Compiler
) -> None:
    try:
        target = load_target("cpu", 1, "bf16")
    except TargetError:
        pytest.skip("this processor lacks AVX512_BF16")
    loaded = CoDesign.load(make_bundle(tiny_space, tmp_path, target, compiler))
    assert loaded.target == target
    resolution = loaded.architecture.resolution
    images = np.random.default_rng(0).standard_normal((3, 3, resolution, resolution)).astype(np.float32)
    with torch.inference_mode():
        expected = loaded.torch_module()(torch.from_numpy(images)).numpy()
    logits = loaded.predict(images)
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() < 0.02 * np.abs(expected).max()


def test_a_bundle_of_before_dtypes_is_float32(copy: Path) -> None:
    document = json.loads((copy / DOCUMENT).read_text())
    del document["targets"][0]["target"]["dtype"]
    (copy / DOCUMENT).write_text(json.dumps(document))
    assert CoDesign.load(copy).target.dtype == "float32"


# ---- several images at once -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("num", [1, 3, 4, 9])
def test_the_last_batch_is_filled_up(tiny_space: SearchSpace, num: int) -> None:
    """A module that takes three images at once gives each of any number of images its own logits."""
    bundle = object.__new__(CoDesign)
    bundle.target = dataclasses.replace(load_target("cpu"), batch=3)
    bundle.space, bundle.architecture, bundle.class_names = tiny_space, tiny_space.smallest, ("a", "b")
    bundle.document = {"hashes": {"weights.safetensors": ""}}
    asked = []

    def run(images: Any) -> Any:
        asked.append(images.shape[0])
        return images[:, :2, 0, 0]

    bundle.__dict__["_run"] = run
    shape = (num, tiny_space.in_channels, tiny_space.smallest.resolution, tiny_space.smallest.resolution)
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    assert np.array_equal(bundle.predict(images), images[:, :2, 0, 0])
    assert set(asked) == {3}


# ---- a module of a device elsewhere ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "runs_here"), [({}, True), ({"fingerprint": "0123456789ab"}, False), ({"num_threads": 4096}, False)]
)
def test_a_bundle_knows_whether_its_module_is_for_this_machine(changes: dict[str, Any], runs_here: bool) -> None:
    bundle = object.__new__(CoDesign)
    bundle.target = dataclasses.replace(load_target("cpu"), **changes)
    assert bundle.runs_here == runs_here


def test_the_accuracy_of_a_module_that_cannot_run_here_is_pytorchs() -> None:
    architecture = Architecture.from_key("r8-w1-k3e3_fiif")
    bundle: Any = SimpleNamespace(runs_here=False, architecture=architecture)
    supernet: Any = SimpleNamespace(
        images=lambda split, resolution: (np.zeros((7, resolution)), split),
        top1=lambda asked, split: {"r8-w1-k3e3": 0.75}[asked.key],
    )
    assert check_module(bundle, supernet) == {"top1_test": 0.75, "num_test_images": 7}
