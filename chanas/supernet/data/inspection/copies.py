"""Images that are exact copies of others: of a class, of several, or of an official part and the images to train on."""

from __future__ import annotations

import numpy as np

from chanas.core.arrays import BoolArray
from chanas.supernet.data.image_source import ImageSource

_MIN_LEFT = 4  # images of a class, one for each split


def official_part(source: ImageSource) -> BoolArray:
    """bool[N]: the images of the official test and holdout parts."""
    masks = [mask for mask in (source.is_test, source.is_holdout) if mask is not None]
    return np.logical_or.reduce(masks) if masks else np.zeros(len(source.labels), bool)


def leaked(source: ImageSource) -> BoolArray:
    """bool[N]: images to train on that have a copy in an official part, and images of the official holdout part that
    have one in the test part; none where too few would be left without them."""
    found = _in_later_parts(source)
    left = official_part(source) | found
    enough = np.bincount(source.labels[~left], minlength=len(source.class_names)).min(initial=_MIN_LEFT) >= _MIN_LEFT
    holdout = source.is_holdout
    return found if enough and (holdout is None or (holdout & ~found).any()) else np.zeros_like(found)


def _in_later_parts(source: ImageSource) -> BoolArray:
    digests, official = source.image_digests(), official_part(source)
    if digests is None:
        return np.zeros_like(official)
    found = ~official & np.isin(digests, digests[official])
    if source.is_holdout is not None and source.is_test is not None:
        found |= source.is_holdout & np.isin(digests, digests[source.is_test])
    return found


def count_copies(source: ImageSource) -> tuple[int, list[str]]:
    """Number of images that are exact copies of others, and lines about them."""
    digests = source.image_digests()
    if digests is None or not len(digests):
        return 0, []
    _, groups, sizes = np.unique(digests, return_inverse=True, return_counts=True)
    num_copies = len(groups) - len(sizes)
    if not num_copies:
        return 0, []
    notes = [f"exact copies of other images: {num_copies}; copies lie in one split"]
    found = _in_later_parts(source)
    if num_leaked := int(leaked(source).sum()):
        notes.append(f"copies in several parts: {num_leaked}; used in the last of train, holdout and test alone")
    elif found.any():
        notes.append(
            f"warning: copies in several parts: {found.sum()}, such as {source.key(int(found.argmax()))}; too few "
            "would be left without them, so they stay, and accuracies will be too good"
        )
    lowest, highest = np.full(len(sizes), len(source.class_names)), np.full(len(sizes), -1)
    np.minimum.at(lowest, groups, source.labels)
    np.maximum.at(highest, groups, source.labels)
    if (mixed := np.flatnonzero(lowest != highest)).size:
        where = np.flatnonzero(groups == mixed[0])
        example = " and ".join(source.key(i) for i in where[[0, -1]].tolist())
        notes.append(f"copies in several classes: {mixed.size}, such as {example}; one of the labels is wrong")
    return num_copies, notes
