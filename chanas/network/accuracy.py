"""Accuracies on a number of images: how sure they are, and whether they can tell networks apart."""

from __future__ import annotations

import math

Z_95 = 1.959964  # 97.5 % quantile of the normal distribution: 95 % lie within so many deviations
_POINT = 0.01


def wilson_interval(num_correct: int, num_images: int) -> tuple[float, float]:
    """Bounds in [0, 1] of a share with 95 % confidence (Wilson, 1927): right near 0 and 1, and for few images, too."""
    share, z2 = num_correct / num_images, Z_95**2
    centre = (share + z2 / (2 * num_images)) / (1 + z2 / num_images)
    half = Z_95 * math.sqrt(share * (1 - share) / num_images + z2 / (4 * num_images**2)) / (1 + z2 / num_images)
    return max(0.0, centre - half), min(1.0, centre + half)


def interval_of(top1: float, num_images: int) -> tuple[float, float]:
    """The Wilson interval of an accuracy in [0, 1] that was counted on so many images."""
    return wilson_interval(round(min(max(top1, 0.0), 1.0) * num_images), num_images)


def images_to_tell_apart(top1: float, other: float) -> int:
    """About how many images tell two accuracies in [0, 1] apart, with 95 % confidence (normal approximation)."""
    variance = top1 * (1.0 - top1) + other * (1.0 - other)
    return math.ceil(variance * (Z_95 / (top1 - other)) ** 2)


def describe_saturation(best: float, fastest: float, num_images: int | None) -> str:
    """A sentence where the accuracies of the most accurate and of the fastest network inside a budget differ by less
    than one of `num_images` images (None: they are of a table, and equal); else nothing."""
    if best - fastest >= (1e-12 if num_images is None else (1.0 - 1e-6) / num_images):
        return ""
    if num_images is None:
        return (
            f"the most accurate and the fastest network inside the budget both have {best:.2%}: the fastest was taken"
        )
    enough = images_to_tell_apart(best, best - _POINT if best > 0.5 else best + _POINT)
    return (
        f"{num_images} holdout images cannot tell the networks inside the budget apart (both the most accurate and the "
        f"fastest have {best:.2%}): the fastest was taken; it takes about {enough} images to see one point"
    )
