"""A bundle's compiled module against PyTorch, on the test images of the supernet that its weights are from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.devices.gpu_use import gpu_of
from chanas.errors import MeasureError

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.supernet.training.evaluate import SupernetEvaluator

# Share of images that a compiled module may classify otherwise than PyTorch in float32: rounding decides close races.
# In int8 it was compared with an emulation, and the accuracy tells what the few numbers cost.
_MAX_DISAGREEMENT = {"float32": 0.0, "bfloat16": 0.02, "float16": 0.02, "tf32": 0.02, "int8": 1.0}


TESTED = ("top1_test", "num_test_images", "num_disagreements", "max_logit_difference")
"""A module's result on the test images, which is the same each time."""


def check_module(
    bundle: CoDesign, supernet: SupernetEvaluator, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Accuracy of the compiled module on test, its agreement with PyTorch on every image, and PyTorch's own speed.

    Of a module that is not for this machine, PyTorch's accuracy alone: on its device it was compared with PyTorch when
    it was measured. Without test images no accuracy: it was compared with PyTorch on random ones then.

    Args:
        known: what the test images told of the very same module and weights before.

    Raises:
        MeasureError: it classifies too many images otherwise than PyTorch.
    """
    from chanas.bundle.benchmark import benchmark
    from chanas.measuring.locks import device_lock

    if not bundle.runs_here:
        num = len(supernet.images("test", bundle.architecture.resolution)[0])
        if not num:
            return {}
        return {"top1_test": supernet.top1(bundle.architecture.plain, "test"), "num_test_images": num}
    agreement = known or _agreement(bundle, supernet)
    with device_lock(gpu=gpu_of(bundle.target)):
        eager = next(
            row for row in benchmark(bundle, with_compile=False, rounds=15, shared=None) if row.name == "PyTorch eager"
        )
    return {**agreement, "pytorch_eager_latency_s": eager.median_s}


def _agreement(bundle: CoDesign, supernet: SupernetEvaluator) -> dict[str, Any]:
    import torch

    images, labels = supernet.images("test", bundle.architecture.resolution)
    if not len(images):
        return {}
    network = bundle.torch_module()
    compiled = bundle.predict(images)
    with torch.inference_mode():
        expected = np.concatenate([network(torch.from_numpy(part)).numpy() for part in np.array_split(images, 8)])
    disagreements = int((compiled.argmax(1) != expected.argmax(1)).sum())
    if disagreements > max(_MAX_DISAGREEMENT[dtype] for dtype in bundle.dtypes) * len(images):
        raise MeasureError(
            f"the module compiled for {bundle.target.name} classifies {disagreements} of {len(images)} test images "
            "otherwise than PyTorch; no bundle was written"
        )
    return {
        "top1_test": float((compiled.argmax(1) == labels).mean()),
        "num_test_images": len(images),
        "num_disagreements": disagreements,
        "max_logit_difference": float(np.abs(compiled - expected).max()),
    }
