"""Summary of a data set: its content, and the part of it that is used, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chanas.supernet.data.image_source import named


@dataclass(frozen=True)
class Inspection:
    """A data set, as it was found.

    name           of the set: where it lies
    num_by_class   images that are used, by class
    num_by_part    images that are used, by the official part: train, holdout, test; all are `train` without such parts
    median_size    width and height in pixels, upright; of what training sees
    is_one_size    every image has that size
    grey_share     share of images in [0, 1] that have no colour
    mean, std      of each channel in [0, 1], over the images that are not of an official test or holdout part
    left_out       number of files that are not used, by reason, such as `.heic`
    remarks        number of images that the reader changed, by what it did, such as laying transparency on white
    num_copies     images that are exact copies of another one
    bad            images that cannot be used and are left out, by name, with the reason
    notes          further lines
    """

    name: str
    num_by_class: Mapping[str, int]
    num_by_part: Mapping[str, int]
    median_size: tuple[int, int]
    is_one_size: bool
    grey_share: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    left_out: Mapping[str, int]
    remarks: Mapping[str, int]
    num_copies: int
    bad: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def num_images(self) -> int:
        """Images that are used."""
        return sum(self.num_by_part.values())

    def lines(self) -> list[str]:
        """Lines in the order of weight; the first is about the pictures that are used."""
        present = {name: number for name, number in self.num_by_class.items() if number} or self.num_by_class
        classes = sorted(present.items(), key=lambda item: item[1])
        (fewest, least), (most, largest) = classes[0], classes[-1]
        each = f"{least} each" if least == largest else f"{least} ({fewest}) to {largest} ({most}) each"
        parts = ", ".join(f"{part} {number}" for part, number in self.num_by_part.items())
        width, height = self.median_size
        grey = f", {self.grey_share:.0%} grey" if self.grey_share else ""
        images = f"{self.num_images} images of {len(classes)} classes, {each}"
        parts = f"; {parts}" if len(self.num_by_part) > 1 else ""
        lines = [f"{images}{parts}; {width} × {height} pixels (median){grey}"]
        lines += self.notes
        if self.left_out:
            total = sum(self.left_out.values())
            lines.append(f"left out: {total} {'file' if total == 1 else 'files'}: {format_counts(self.left_out)}")
        if self.bad:
            lines.append(f"left out as asked: {len(self.bad)} that cannot be used: {named(list(self.bad))}")
        lines += [f"{remark}: {number}" for remark, number in self.remarks.items()]
        return lines


def format_counts(counts: Mapping[str, int]) -> str:
    """`.heic 20, no ending 4`, the largest first."""
    return ", ".join(
        f"{what} {number}" for what, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
