"""Train the detector on images of shapes, in minutes, and write it as files for `chanas`.

    python examples/detector/train.py [--minutes 4] [--width 1] [--threads N] [--seed 0] [--out runs/detector]

Most of the time goes into small images, whose objects are as large as those of large ones, so that an image costs a
seventh; the last part into images of 416 pixels. None is seen twice. The folder gets `detector.pt2` (`torch.export`),
`detector.onnx`, `detector.safetensors`, `calibration/` with 100 images of those that it is trained with (for int8), and
`val/` with 200 images and their annotations, on which the mean average precision is taken at the end.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from evaluate import evaluate, torch_predict
from loss import detection_loss
from network import Detector
from safetensors.torch import save_file
from shapes import CLASSES, SIZE, draw, write_coco
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm


@dataclass(frozen=True)
class Phase:
    """A part of the training with images of one size."""

    until: float
    """Share of the time at its end, in (0, 1]."""
    size: int
    """Pixels on each side."""
    batch_size: int


PHASES = (Phase(until=0.75, size=160, batch_size=16), Phase(until=1.0, size=SIZE, batch_size=4))
LEARNING_RATE, WEIGHT_DECAY = 2e-3, 0.02
WARM_UP = 0.04
"""Share of the time in which the learning rate rises."""
EMA_DECAY = 0.98
"""Weights are averaged over about 1 / (1 - decay) steps: there are only hundreds."""
VAL_IMAGES, CALIBRATION_IMAGES = 200, 100


def draw_batch(seed: int, first: int, phase: Phase) -> tuple[Tensor, Tensor]:
    """Images float32[N, 3, S, S] in [0, 1], and their objects, float32[n, 6]: image, label, x1, y1, x2, y2."""
    scenes = [draw("train", seed, first + i, phase.size) for i in range(phase.batch_size)]
    pixels = torch.from_numpy(np.stack([scene.pixels for scene in scenes]))
    images = pixels.permute(0, 3, 1, 2).float() / 255.0  # keeps the order in memory: channels last
    rows = [
        np.column_stack([np.full(len(scene.labels), i), scene.labels, scene.boxes]) for i, scene in enumerate(scenes)
    ]
    return images, torch.from_numpy(np.concatenate(rows).astype(np.float32))


def batches(seed: int, phase: Phase, first: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without an end; the next one is drawn while one is in use."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(draw_batch, seed, first, phase)
        while True:
            first += phase.batch_size
            ready, following = following, pool.submit(draw_batch, seed, first, phase)
            yield ready.result()


def learning_rate(progress: float) -> float:
    """A short rise, then half a cosine down to 0; `progress` is the share of the time that has passed."""
    if progress < WARM_UP:
        return LEARNING_RATE * (progress + 0.001) / WARM_UP
    return LEARNING_RATE * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


def faster_in_bfloat16(network: Detector) -> bool:
    """Time a few images in both types: processors with instructions for bfloat16 are nearly twice as fast with it,
    others many times slower. The network stays as it is."""
    twin = copy.deepcopy(network)
    images = torch.zeros(4, 3, 160, 160).to(memory_format=torch.channels_last)
    seconds = {False: math.inf, True: math.inf}
    for in_bfloat16 in (False, True) * 6:
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
            sum(head.float().sum() for head in twin(images)).backward()
        seconds[in_bfloat16] = min(seconds[in_bfloat16], time.perf_counter() - start)
    return seconds[True] < seconds[False]


def train(
    network: Detector,
    seconds: float,
    seed: int,
    phases: Sequence[Phase] = PHASES,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[nn.Module, list[float]]:
    """Train for so long by the clock; the network with averaged weights, and the loss of each step."""
    network.train().to(memory_format=torch.channels_last)
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(EMA_DECAY), use_buffers=True)
    decayed = [p for p in network.parameters() if p.ndim > 1]
    plain = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    in_bfloat16 = faster_in_bfloat16(network)
    dtype = "bf16" if in_bfloat16 else "f32"
    losses: list[float] = []
    start, num_images = clock(), 0
    with tqdm(total=round(seconds), unit="s", bar_format="{l_bar}{bar}| {n:.0f}/{total} s{postfix}") as bar:
        for phase in phases:
            for images, truth in batches(seed, phase, num_images):
                elapsed = clock() - start
                progress = elapsed / seconds
                if progress >= phase.until:
                    break
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(progress)
                with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
                    heads = network(images)
                loss = detection_loss(heads, truth, phase.size)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 10.0)
                optimizer.step()
                average.update_parameters(network)
                num_images += phase.batch_size
                losses.append(loss.item())
                bar.n = elapsed
                late = np.mean(losses[-20:])
                bar.set_postfix_str(f"{num_images} images, {phase.size} px, {dtype}, loss {late:.3f}")
    return average.module.eval(), losses


def export(network: nn.Module, folder: Path) -> None:
    """Write `detector.pt2`, `detector.onnx` and `detector.safetensors`."""
    network = network.to(memory_format=torch.contiguous_format)
    example = (torch.zeros(1, 3, SIZE, SIZE),)
    save_file(network.state_dict(), folder / "detector.safetensors")
    torch.export.save(torch.export.export(network, example), folder / "detector.pt2")
    torch.onnx.export(
        network,
        example,
        folder / "detector.onnx",
        input_names=["image"],
        output_names=["coarse", "fine"],
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0, help="of training; drawing val and testing come on top")
    parser.add_argument("--width", type=float, default=1.0, help="factor of the numbers of channels")
    parser.add_argument("--threads", type=int, default=None, help="all cores by default; fewer where others work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-images", type=int, default=VAL_IMAGES, help="in val/")
    parser.add_argument("--out", type=Path, default=Path("runs/detector"))
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    network, _ = train(Detector(len(CLASSES), options.width), 60.0 * options.minutes, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    write_coco(options.out / "val", "val", options.seed, options.num_images)
    write_coco(options.out / "calibration", "train", options.seed, CALIBRATION_IMAGES)
    export(network, options.out)
    print(evaluate(torch_predict(network), options.out / "val").describe())
    print(f"{options.out / 'detector.onnx'}, {options.out / 'detector.pt2'}")


if __name__ == "__main__":
    main()
