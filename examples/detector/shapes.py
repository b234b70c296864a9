"""Images of circles, squares, triangles and crosses on noisy backgrounds, with boxes, as many as one likes.

    python examples/detector/shapes.py --out FOLDER [--split train|val] [--num-images 200] [--size 416] [--seed 0]

An image follows from split, seed, number and size alone; those of `train` and `val` are never the same. The folder gets
`images/` and `annotations.json`, in the format of COCO.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

CLASSES = ("circle", "square", "triangle", "cross")
SPLITS = ("train", "val")
ANNOTATIONS = "annotations.json"
SIZE = 416
LEAST_SIDE, MOST_SIDE = 20.0, 140.0
_MOST_HIDDEN = 0.3
"""Share of a box that another one may lie on."""
_LEAST_CONTRAST = 60.0
_UNIT = {  # outlines around (0, 0), inside the unit circle
    "square": [(math.cos(a), math.sin(a)) for a in (math.pi * (2 * i + 1) / 4 for i in range(4))],
    "triangle": [(math.cos(a), math.sin(a)) for a in (math.pi * (2 * i / 3 - 0.5) for i in range(3))],
    "cross": [
        (x / 3.2, y / 3.2)
        for x, y in zip(
            (-1, 1, 1, 3, 3, 1, 1, -1, -1, -3, -3, -1), (-3, -3, -1, -1, 1, 1, 3, 3, 1, 1, -1, -1), strict=True
        )
    ],
}


@dataclass(frozen=True)
class Scene:
    """One image and the objects in it."""

    pixels: NDArray[np.uint8]
    """[S, S, 3], RGB"""
    boxes: NDArray[np.float32]
    """[n, 4]: x1, y1, x2, y2 in pixels"""
    labels: NDArray[np.int64]
    """[n], indices of `CLASSES`"""


def draw(split: str, seed: int, number: int, size: int = SIZE) -> Scene:
    """One image. Objects have the same sizes in pixels whatever the size of the image: a smaller image is a crop of a
    larger one, and a network trained on it knows the objects of the larger.

    Args:
        split: one of `SPLITS`; their images are disjoint.
        number: of the image, from 0.
        size: pixels on each side.
    """
    rng = np.random.default_rng([SPLITS.index(split), seed, number, size])
    image = _background(rng, size)
    boxes: list[tuple[float, ...]] = []
    labels = []
    for _ in range(rng.integers(1, 4 + round(8 * (size / SIZE) ** 2))):
        label = int(rng.integers(len(CLASSES)))
        corners = random_outline(rng, CLASSES[label], size)
        box = (*corners.min(axis=0), *corners.max(axis=0))
        if all(_hidden(box, other) <= _MOST_HIDDEN for other in boxes):
            paint(rng, image, CLASSES[label], corners)
            boxes.append(box)
            labels.append(label)
    noise = rng.integers(0, 256, (size, size, 3), np.uint8).astype(np.float32) - 127.5
    noisy = np.asarray(image, np.float32) + noise * rng.uniform(0.02, 0.25)
    pixels = noisy.clip(0, 255).astype(np.uint8)
    return Scene(pixels, np.asarray(boxes, np.float32), np.asarray(labels, np.int64))


def _background(rng: np.random.Generator, size: int) -> Image.Image:
    """Smooth patches of colour, and lines that are no objects."""
    cells = int(rng.integers(1, 8))
    middle, spread = rng.uniform(30, 225, 3), rng.uniform(0, 60)
    coarse = (middle + spread * rng.standard_normal((cells, cells, 3))).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for _ in range(rng.integers(0, 5)):
        ends = rng.uniform(0, size, 4).tolist()
        pen.line(ends, fill=_colour(rng), width=int(rng.integers(1, 5)))
    return image


def random_outline(rng: np.random.Generator, name: str, size: int) -> NDArray[np.float64]:
    """Corners of a turned shape inside the image, [k, 2] (of a circle those of the square around it)."""
    side = math.exp(rng.uniform(math.log(LEAST_SIDE), math.log(min(MOST_SIDE, 0.75 * size))))
    turn = rng.uniform(0, 2 * math.pi)
    if name == "circle":
        corners = np.array([(-1.0, -1.0), (1.0, 1.0)])
    else:
        cos, sin = math.cos(turn), math.sin(turn)
        corners = np.array(_UNIT[name]) @ np.array([(cos, sin), (-sin, cos)])
    low, high = corners.min(axis=0), corners.max(axis=0)
    corners = (corners - low) * side / (high - low).max()
    moved: NDArray[np.float64] = corners + rng.uniform(0, size - 1 - corners.max(axis=0))
    return moved


def paint(rng: np.random.Generator, image: Image.Image, name: str, corners: NDArray[np.float64]) -> None:
    """One shape, filled or as a line, in a colour that differs from what was there."""
    column, row = corners.mean(axis=0)
    before = np.asarray(image.getpixel((int(column), int(row))))
    colour = _colour(rng)
    while np.abs(np.subtract(colour, before)).max() < _LEAST_CONTRAST:
        colour = _colour(rng)
    pen = ImageDraw.Draw(image)
    points = [tuple(point) for point in corners.tolist()]
    thickness = max(2, round(float(np.ptp(corners[:, 0])) / 10))
    filled = rng.random() < 0.75
    if name == "circle":
        pen.ellipse([*points[0], *points[1]], fill=colour if filled else None, outline=colour, width=thickness)
    else:
        pen.polygon(points, fill=colour if filled else None, outline=colour, width=thickness)


def _colour(rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = rng.integers(0, 256, 3).tolist()
    return red, green, blue


def _hidden(a: Sequence[float], b: Sequence[float]) -> float:
    """Share of the smaller of two boxes that the larger lies on."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return max(width, 0.0) * max(height, 0.0) / smaller


def write_coco(folder: Path, split: str, seed: int, num_images: int, size: int = SIZE) -> Path:
    """Write images and annotations to a folder, and give the path of the annotations."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for number in range(num_images):
        scene = draw(split, seed, number, size)
        name = f"{number:06d}.jpg"
        Image.fromarray(scene.pixels).save(folder / "images" / name, quality=95)
        images.append({"id": number + 1, "file_name": name, "width": size, "height": size})
        for (x1, y1, x2, y2), label in zip(scene.boxes.tolist(), scene.labels.tolist(), strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1,  # pycocotools takes 0 for no annotation
                    "image_id": number + 1,
                    "category_id": label + 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(CLASSES)]
    path = folder / ANNOTATIONS
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}), "utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", choices=SPLITS, default="val")
    parser.add_argument("--num-images", type=int, default=200)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(write_coco(options.out, options.split, options.seed, options.num_images, options.size))


if __name__ == "__main__":
    main()
