"""Sizes of packed arrays: channels in blocks of a vector's lanes, and rows of matrices on GPUs."""

from __future__ import annotations

_ROW_MULTIPLE = 8
"""Maps of 49, 100 or 196 pixels get 7, 4 and 4 rows more; the larger ones of the presets none, nor do 8 images."""


def num_blocks(channels: int, lanes: int) -> int:
    """Channel blocks that hold `channels`."""
    return -(-channels // lanes)


def num_rows(pixels: int) -> int:
    """Rows that maps of so many pixels together have in a GPU's memory: from 8 on rounded up to a multiple of 8."""
    return pixels if pixels < _ROW_MULTIPLE else -(-pixels // _ROW_MULTIPLE) * _ROW_MULTIPLE
