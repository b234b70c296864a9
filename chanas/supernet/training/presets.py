"""The training config for images that come without one: a preset by their size, adapted to what they are."""

from __future__ import annotations

from typing import Any

import psutil

from chanas.supernet.data.data_config import IMAGENET_MEAN
from chanas.supernet.data.inspection.summary import Inspection
from chanas.supernet.training.phases import TrainConfig

MAX_SMALL_SIDE = 64
"""Short side in pixels up to which images are small; a photo of that size says little more at 160 pixels."""
MAX_GREY_SHARE = 0.5
_MEMORY_SHARE = 0.25  # of what is free, for decoded images
_DIGITS = 3  # of a mean, so that the same images give the same config on any machine


def preset_for(inspection: Inspection) -> str:
    """The name of the preset for a data set."""
    return "small-images" if min(inspection.median_size) <= MAX_SMALL_SIDE else "photos"


def config_for(inspection: Inspection) -> TrainConfig:
    """The preset of a data set, with what depends on its images: their own mean and deviation where they are small or
    grey (photos have ImageNet's), no mirroring of grey ones, which may be signs or letters, and small ones of one size
    decoded once."""
    preset = preset_for(inspection)
    config = TrainConfig.load(preset)
    is_small, is_grey = preset == "small-images", inspection.grey_share > MAX_GREY_SHARE
    data: dict[str, Any] = {}
    if is_small or is_grey:
        data |= {"mean": _rounded(inspection.mean), "std": _rounded(inspection.std, least=0.01)}
    if is_grey:
        data["augment"] = {**config.data.augment.model_dump(), "flip": False}
    if is_small and inspection.is_one_size and _fits_memory(inspection):
        data["in_memory"] = True
    return config.changed(data=data)


def describe_choice(inspection: Inspection, config: TrainConfig) -> str:
    """One line about why a preset was chosen."""
    kind = "grey images" if inspection.grey_share > MAX_GREY_SHARE else "images"
    side = min(inspection.median_size)
    relation = "at most" if side <= MAX_SMALL_SIDE else "above"
    norm = "ImageNet's" if config.data.mean == IMAGENET_MEAN else "measured on these"
    mirrored = "mirrored" if config.data.augment.flip else "not mirrored"
    return (
        f"preset     {preset_for(inspection)}: {kind} with a short side of {side} pixels ({relation} "
        f"{MAX_SMALL_SIDE}), {mirrored}; mean and deviation {norm}; --config names another one"
    )


def _rounded(values: tuple[float, ...], least: float = 0.0) -> list[float]:
    return [max(least, round(value, _DIGITS)) for value in values]


def _fits_memory(inspection: Inspection) -> bool:
    width, height = inspection.median_size
    return 3 * width * height * inspection.num_images < _MEMORY_SHARE * int(psutil.virtual_memory().available)
