"""Image folders: `root/CLASS/IMAGE`, listed in one pass together with what later tells a replaced file.

ImageNet has 1.3 million files, so nothing here touches a file twice, and listing waits for many folders at once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from chanas.core.arrays import IntArray
from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.folders.layout import HOLDOUT, TEST, TRAIN, find_layout, parts_of
from chanas.supernet.data.folders.walk import FolderContent, walk
from chanas.supernet.data.image_source import EncodedSource, Files, named, stamps_of

NUM_LIST_THREADS = 8
Listing = dict[str, dict[str, FolderContent]]
"""Images by part and class, their paths below the whole folder."""


def image_folder(config: DataConfig) -> EncodedSource:
    """`root/CLASS/IMAGE`, or the same for each part, as `chanas.supernet.data.folders.layout` finds it; parts may lie
    in the class folders, too (`root/CLASS/train/IMAGE`).

    Class folders may have folders of their own; links are followed.

    Raises:
        DataError: there is no such folder, or its parts and classes are not as described.
    """
    root = config.root
    if root is None:
        raise DataError("data set imagefolder needs `root`: a folder with one folder of images per class")
    check_folder(root)
    layout = find_layout(root)
    if not layout.parts[TRAIN]:
        raise DataError(f"image folder {root} holds no class folders; expected {root}/CLASS/IMAGE")
    left_out, notes = layout.left_out.copy(), list(layout.notes)
    listing = list_classes(root, layout.parts)
    for content in _contents(listing):
        left_out.update(content.left_out)
    if list(listing) == [TRAIN]:
        listing = _parts_in_classes(root, listing, left_out, notes)
    check_all_there(root, listing)
    class_names = tuple(listing[TRAIN])
    counts = [len(part[name].images) for part in listing.values() for name in class_names]
    labels = np.repeat(np.tile(np.arange(len(class_names)), len(listing)), counts)
    part = np.repeat(list(listing), [sum(len(c.images) for c in classes.values()) for classes in listing.values()])
    images = [image for part in listing.values() for name in class_names for image in part[name].images]
    return EncodedSource(
        f"imagefolder {root}",
        class_names,
        labels,
        *files_of(root, images),
        is_test=part == TEST if TEST in listing else None,
        is_holdout=part == HOLDOUT if HOLDOUT in listing else None,
        left_out=left_out,
        notes=tuple(notes),
    )


def check_folder(root: Path) -> None:
    """Raise DataError where there is no such folder."""
    if root.is_dir():
        return
    if root.exists():
        raise DataError(f"{root} is a file; expected a folder with a folder for each class: FOLDER/CLASS/IMAGE")
    raise DataError(f"image folder {root} does not exist")


def list_classes(root: Path, parts: Mapping[str, Mapping[str, Path]]) -> Listing:
    """The images of class folders below `root`, by part and class.

    Raises:
        DataError: a folder cannot be read.
    """

    def listed(path: Path) -> FolderContent:
        content, prefix = walk(path), f"{path.relative_to(root)}/"
        content.images = [(prefix + name, status) for name, status in content.images]
        return content

    with ThreadPoolExecutor(NUM_LIST_THREADS) as pool:
        found = iter(list(pool.map(listed, [path for classes in parts.values() for path in classes.values()])))
    return {part: {name: next(found) for name in classes} for part, classes in parts.items()}


def files_of(
    root: Path, images: Sequence[tuple[str, os.stat_result]]
) -> tuple[Sequence[str], IntArray, Files, IntArray]:
    """Keys, sizes, reader and stamps of an `EncodedSource` of files below `root`."""
    names = tuple(name for name, _ in images)
    stamps = stamps_of(status for _, status in images)
    return names, stamps[:, 1].copy(), Files(root, names), stamps


def _contents(listing: Listing) -> Iterable[FolderContent]:
    return (content for classes in listing.values() for content in classes.values())


def _parts_in_classes(root: Path, listing: Listing, left_out: Counter[str], notes: list[str]) -> Listing:
    """The same images, by parts where each class folder holds folders of these.

    Raises:
        DataError: some of them do, and others do not, or hold other parts.
    """
    classes = listing[TRAIN]
    inside = {name: parts_of(content.folders) for name, content in classes.items()}
    if not any(inside.values()):
        return listing
    found = {name: sorted(set(parts.values())) for name, parts in inside.items()}
    first = next(name for name, parts in found.items() if parts)
    for name, parts in found.items():
        if parts != found[first] or TRAIN not in parts or len(inside[name]) != len(parts):
            held = [", ".join(inside[n]) or "none" for n in (first, name)]
            raise DataError(
                f"class folders of {root} should hold the same parts, with `train` among them: {first} holds "
                f"{held[0]}, {name} holds {held[1]}; sort images into PART/CLASS/IMAGE, or rename these folders"
            )
    roles = {role: HOLDOUT if role == HOLDOUT and TEST in found[first] else TEST for role in found[first]}
    sorted_in: Listing = {role: {name: FolderContent() for name in classes} for role in (TRAIN, HOLDOUT, TEST)}
    for name, content in classes.items():
        for path, status in content.images:
            folder = path.removeprefix(f"{name}/").partition("/")
            role = inside[name].get(folder[0]) if folder[1] else None
            if role is None:
                left_out["in class folders, next to their parts"] += 1
            else:
                sorted_in[TRAIN if role == TRAIN else roles[role]][name].images.append((path, status))
    notes.append(f"class folders hold parts: {', '.join(inside[first])}")
    return {role: part for role, part in sorted_in.items() if any(c.images for c in part.values())}


def check_all_there(root: Path, listing: Listing) -> None:
    """Check that each part has images of every class.

    Raises:
        DataError: one lacks some.
    """
    names = set(listing[TRAIN])
    for part, classes in listing.items():
        where = f"{root}, {part} part" if len(listing) > 1 else str(root)
        if extra := sorted(set(classes) - names):
            raise DataError(f"{where}: class {named(extra)} is there, which the images to train on lack")
        if missing := sorted(names - set(classes)):
            raise DataError(
                f"{where}: class {named(missing)} is missing, which the images to train on have; without images of "
                "every class its accuracy would mislead"
            )
        if empty := [name for name, content in classes.items() if not content.images]:
            raise DataError(
                f"{where}: no images in class {named(empty)}; add some, or remove the folder (of every part)"
            )
