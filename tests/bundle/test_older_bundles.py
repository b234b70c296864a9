"""Bundles of schema 2, whose first target was the document itself and whose others were `further_targets`: they load,
run, are reported and exported as when they were written.

The folder `stored_schema_2` holds what `chanas search` wrote then: `one.json` for a target, `several.json` for two.
Their modules are compiled anew from the schedules in them, for the machine that the tests run on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from chanas.bundle.codesign import CoDesign
from chanas.commands.search_text import bundle_lines
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.target import HardwareTarget
from chanas.errors import CheckpointError
from chanas.export.c_library import export
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.measuring.messages import Build, NetworkAt
from chanas.measuring.worker.compiler import Compiler
from chanas.workflows.stages.reporting import report

from ..compiler.workbench import HOST, network_job

STORED = Path(__file__).parent / "stored_schema_2"
Read = Callable[[str], Path]
Compile = Callable[[Path, dict[str, Any], dict[str, Any]], None]

pytestmark = pytest.mark.usefixtures("one_compiler")


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Compile:
    """Compile the module of a stored target, once for both bundles."""
    known: dict[str, Path] = {}

    def compile_module(path: Path, part: dict[str, Any], document: dict[str, Any]) -> None:
        key = json.dumps(part["schedules"])
        if key not in known:
            blocks = blocks_of(document)
            known[key] = tmp_path_factory.mktemp("module") / "network.so"
            points = [[point for _, point in block["operators"]] for block in part["schedules"]]
            target = HardwareTarget.from_json(part["target"])
            request = Build(target=target, what=NetworkAt(blocks, points), path=known[key])
            compiler.result(request, "the network")
        shutil.copyfile(known[key], path)

    return compile_module


def blocks_of(document: dict[str, Any]) -> Any:
    architecture = Architecture.from_json(document["architecture"])
    return architecture.blocks(SearchSpace.from_json(document["space"]), len(document["class_names"]))


@pytest.fixture
def read(tmp_path: Path, module: Compile) -> Read:
    """The folder of a stored bundle, completed for this machine."""

    def complete(name: str) -> Path:
        document, folder = stored(name), RunDirectory(tmp_path / "run").bundle
        if document["target"]["vector_lanes"] != HOST.vector_lanes:
            pytest.skip("the stored schedules are for other vectors than this processor's")
        folder.mkdir(parents=True)
        parts = [document, *document.get("further_targets", ())]
        for part in parts:
            part["target"] = HOST.to_json() | {k: part["target"][k] for k in ("name", "num_threads")}
            module(folder / part.get("module", "module.so"), part, document)
        job = network_job(blocks_of(document), folder / "unused.so")
        tensors = {f"blocks.{i}.{key}": v for i, part in enumerate(job.parameters) for key, v in part.items()}
        save_file(tensors, folder / "weights.safetensors")
        document["hashes"] |= {f.name: file_digest(f) for f in folder.iterdir()}
        (folder / "codesign.json").write_text(json.dumps(document), encoding="utf-8")
        return folder

    return complete


@pytest.mark.parametrize(("name", "targets"), [("one", ("cpu",)), ("several", ("cpu", "cpu-2t"))])
def test_they_run_on_each_of_their_targets(name: str, targets: tuple[str, ...], read: Read) -> None:
    folder = read(name)
    assert CoDesign.load(folder).targets == targets
    assert CoDesign.load(folder).target.name == "cpu"
    for target in targets:
        bundle = CoDesign.load(folder, target)
        assert bundle.target.name == target
        shape = (2, 3, bundle.architecture.resolution, bundle.architecture.resolution)
        images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        np.testing.assert_allclose(bundle.predict(images), bundle.torch_logits(images), rtol=1e-4, atol=1e-4)


def test_they_say_what_they_said(read: Read) -> None:
    lines = list(bundle_lines(CoDesign.load(read("several"))))
    for said in (
        "latency budget      1 s",
        "latency predicted   500 ms by the table",
        "latency measured    5.37 us (spread 3.44 us)",
        "on cpu-2t           94.9 us measured, 1.5 s predicted, budget 2 s",
        "accuracy on test    12.50% of 16 images, compiled module",
        "accuracy on holdout 75.00% (predicted 70.00%)",
    ):
        assert said in lines
    assert any("10.8 kB of activations" in line for line in lines)


def test_they_are_reported_with_every_target(read: Read) -> None:
    run = RunDirectory(read("several").parent)
    page = report(run).read_text(encoding="utf-8")
    assert "measured on cpu-2t, budget 2 s" in page
    assert "94.9 µs" in page
    assert "accuracy on 16 test images (95 % interval 3.5 to 36.0 %)" in page


def test_they_are_exported_for_each_of_their_targets(read: Read, tmp_path: Path) -> None:
    if shutil.which("cc") is None or shutil.which("ar") is None:
        pytest.skip("no C compiler (cc, ar) is installed")
    folder = read("several")
    for target, latency in (("cpu", "5.37 us"), ("cpu-2t", "94.9 us")):
        done = export(folder, tmp_path / f"net_{target[-2:]}", target=target)
        header = next(done.folder.glob("*.h")).read_text(encoding="utf-8")
        assert f"{latency} measured through the bundle's module" in header


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: d["further_targets"][0].pop("module"), r"further_targets\.0\.module is missing"),
        (lambda d: d.pop("target"), "target is missing"),
        (lambda d: d["further_targets"][0].update(module="../other.so"), "names a module outside its folder"),
    ],
    ids=["no module", "no target", "a module elsewhere"],
)
def test_a_damaged_one_is_one_line(spoil: Callable[[dict[str, Any]], object], says: str, tmp_path: Path) -> None:
    document = stored("several")
    spoil(document)
    for file in ("weights.safetensors", "module.so"):
        (tmp_path / file).write_bytes(b"")
        document["hashes"][file] = file_digest(tmp_path / file)
    (tmp_path / "codesign.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CheckpointError, match=says):
        CoDesign.load(tmp_path)
