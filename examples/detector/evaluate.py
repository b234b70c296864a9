"""Mean average precision of a detector, as COCO counts it, whatever runs the network.

    python examples/detector/evaluate.py --model detector.onnx|detector.pt2 --data FOLDER [--num-images 200]

A script that has another way to run the network, a compiled module say, hands it to `evaluate` as a function from an
image to the raw maps:

    evaluate(lambda image: module.predict(image), Path("val"))
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from boxes import Detections, Floats, detect
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from shapes import ANNOTATIONS

from chanas.network.pictures import read_picture

Predict = Callable[[Floats], Sequence[Floats]]
"""From an image float32[1, 3, S, S], RGB in [0, 1], to its raw maps, float32[1, 3·(5 + C), S/stride, S/stride]."""


@dataclass(frozen=True)
class Scores:
    """What COCO prints first, in [0, 1]."""

    map: float
    """Mean average precision, over intersections over union of 0.5 to 0.95."""
    map50: float
    """The same where an intersection over union of 0.5 is enough."""

    def describe(self) -> str:
        """Both in one line."""
        return f"mAP50 {self.map50:.1%}, mAP50-95 {self.map:.1%}"


def evaluate(predict: Predict, data: Path, num_images: int | None = None) -> Scores:
    """Run a detector on the images of a folder, one by one, and compare what it finds with the annotations.

    Args:
        predict: see `Predict`.
        data: `annotations.json` and `images/`, as `shapes.write_coco` leaves them; images are squares of one size.
        num_images: the first so many; all by default.
    """
    truth = _silently(COCO, str(data / ANNOTATIONS))
    ids = sorted(truth.getImgIds())[:num_images]
    found = []
    for number in ids:
        image = read_image(data / "images" / truth.loadImgs(number)[0]["file_name"])
        heads = [np.asarray(head) for head in predict(image)]
        found += coco_results(number, detect(heads, image.shape[-1]))
    return coco_scores(truth, found, ids)


def read_image(path: Path) -> Floats:
    """An image file as float32[1, 3, S, S] in [0, 1]."""
    pixels = np.asarray(read_picture(path, str(path)).image, np.float32)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0)[None]) / np.float32(255.0)


def coco_results(image_id: int, detections: Detections) -> list[dict[str, Any]]:
    """Detections of an image as COCO's results: x, y, width, height, and categories from 1."""
    corners = detections.boxes.astype(float)
    bboxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).tolist()
    return [
        {"image_id": image_id, "category_id": label + 1, "bbox": bbox, "score": score}
        for bbox, score, label in zip(bboxes, detections.scores.tolist(), detections.labels.tolist(), strict=True)
    ]


def coco_scores(truth: COCO, found: list[dict[str, Any]], image_ids: Sequence[int]) -> Scores:
    """Compare results with annotations."""
    if not found:  # pycocotools cannot read an empty list
        return Scores(0.0, 0.0)
    judge = COCOeval(truth, _silently(truth.loadRes, found), "bbox")
    judge.params.imgIds = list(image_ids)
    for step in (judge.evaluate, judge.accumulate, judge.summarize):
        _silently(step)
    return Scores(float(judge.stats[0]), float(judge.stats[1]))


def _silently(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call what prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return call(*arguments)


def open_predict(model: Path) -> Predict:
    """The network of a file: `.onnx` in ONNX Runtime, `.pt2` in PyTorch."""
    if model.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda image: session.run(None, {name: image})
    import torch

    return torch_predict(torch.export.load(model).module())


def torch_predict(network: Callable[..., Any]) -> Predict:
    """A network of PyTorch as a function of arrays."""
    import torch

    def predict(image: Floats) -> list[Floats]:
        with torch.inference_mode():
            return [head.numpy() for head in network(torch.from_numpy(image))]

    return predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="a folder that shapes.py or train.py has written")
    parser.add_argument("--num-images", type=int, default=None)
    options = parser.parse_args()
    print(evaluate(open_predict(options.model), options.data, options.num_images).describe())


if __name__ == "__main__":
    main()
