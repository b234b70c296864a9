"""A tiny network as users bring them, of PyTorch and from an ONNX file, and tuned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SHAPE = (1, 3, 16, 16)
NUM_CLASSES = 5


def save_exported(path: Path, seed: int = 0) -> Path:
    """A convolution, its batch normalisation, a mean and a dense layer, as `torch.export.save` writes them."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    network = nn.Sequential(features, nn.Flatten(), nn.Linear(8, NUM_CLASSES))
    return save_program(network, [torch.zeros(SHAPE)], path)


def save_program(network: Any, given: Sequence[Any], path: Path) -> Path:
    """A network of PyTorch for such inputs, as `torch.export.save` writes it."""
    import torch

    torch.export.save(torch.export.export(network.eval(), tuple(given)), path)
    return path


def save_onnx(path: Path, seed: int = 0) -> Path:
    """The same layers, without batch normalisation, in an ONNX file."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(seed)
    weights = {"w": (8, 3, 3, 3), "b": (8,), "v": (NUM_CLASSES, 8), "c": (NUM_CLASSES,)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "v", "c"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, NUM_CLASSES))],
        [numpy_helper.from_array(rng.standard_normal(s, dtype=np.float32), name) for name, s in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def tune_quickly(source: Path, folder: Path, run: Path) -> Path:
    """Tune a network with one trial per operator, its records in `run`, and save it in `folder`."""
    from chanas.workflows.models.chain import Model

    return Model.load(source).tune(trials=1, run=run, progress=False).build().save(folder).folder


def save_untuned(source: Path | str, folder: Path, num_threads: int = 1, choice: int = 0) -> Path:
    """Compile a network with the default schedules, as `chanas tune` does with the best ones, and save it. Of operators
    that compute the same it takes the one that `choice` says, as far as there are so many. Choices are in another order
    than the program's operators, on which nothing may depend."""
    from chanas.core.usage import Usage
    from chanas.devices.host import load_target
    from chanas.models.lowering import lower
    from chanas.models.proof.reference import reference_of
    from chanas.prescheduler.ideas import ranked_points
    from chanas.prescheduler.program import ChosenOperator, TunedOperators
    from chanas.workflows.models.chain import Model, TunedModel

    loaded, host = Model.load(source), load_target("cpu", num_threads)
    program = lower(loaded.graph, host)
    taken = {o.key: o.choices[min(choice, len(o.choices) - 1)] for o in program.tuned}
    choices = {key: ChosenOperator(w, tuple(ranked_points(w, host, 1)[0]), 1e-6) for key, w in reversed(taken.items())}
    usage, reference = Usage("cpu", num_threads), reference_of(loaded.opened, loaded.graph)
    tuned = TunedModel(loaded, usage, host, program, TunedOperators(choices), 0, loaded.watch, reference)
    return tuned.build().save(folder).folder


def untuned_program(network: Any, given: Sequence[Any], place: Path, num_threads: int = 1, choice: int = 0) -> Path:
    """A network of PyTorch in the folder `net` of a place, as `save_untuned` saves it, and as `net.pt2` beside it."""
    return save_untuned(save_program(network, given, place / "net.pt2"), place / "net", num_threads, choice)


def change_document(folder: Path, **changes: object) -> None:
    """Entries of the document of a tuned network's folder, written over it."""
    from chanas.bundle.tuned import DOCUMENT

    document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    (folder / DOCUMENT).write_text(json.dumps({**document, **changes}), encoding="utf-8")
