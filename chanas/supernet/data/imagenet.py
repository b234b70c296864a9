"""ImageNet's 1,000 classes, for weights that were trained on them: with a folder of images of some of them, or with no
images at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.folders.layout import TRAIN, find_layout
from chanas.supernet.data.hugging_face import hugging_face
from chanas.supernet.data.image_folder import check_all_there, check_folder, files_of, list_classes
from chanas.supernet.data.image_source import EncodedSource
from chanas.supernet.data.places import kind_of
from chanas.supernet.data.shards import shards

NUM_CLASSES = 1000
_SYNSET = re.compile(r"n\d{8}")


def imagenet(config: DataConfig) -> EncodedSource:
    """`root/CLASS/IMAGE`, a class called by its number (0 to 999) or its name, or all 1,000 of them by their synsets;
    or tar shards or a data set of Hugging Face whose classes are called so, or are 1,000 in ImageNet's order; no images
    where there is no `root`.

    Raises:
        DataError: there is no such folder, its classes are not called like that, or it has parts.
    """
    root, names = config.root, _class_names()
    if root is None:
        return EncodedSource("imagenet", names, np.zeros(0, np.int64), *files_of(Path(), []))
    if (kind := kind_of(root)) != "imagefolder":
        found = (shards if kind == "webdataset" else hugging_face)(config)
        numbers = np.array(_labels(root, found.class_names, names), dtype=np.int64)
        found = replace(found, is_test=None, is_holdout=None)
        return replace(found, name=f"imagenet {root}", class_names=names, labels=numbers[found.labels])
    check_folder(root)
    layout = find_layout(root)
    if len(layout.parts) > 1:
        raise DataError(f"{root} has parts ({'; '.join(layout.notes)}); name the folder of one of them")
    folders = layout.parts[TRAIN]
    labels = _labels(root, list(folders), names)
    listing = list_classes(root, layout.parts)
    check_all_there(root, listing)
    contents = listing[TRAIN].values()
    images = [image for content in contents for image in content.images]
    return EncodedSource(
        f"imagenet {root}",
        names,
        np.repeat(labels, [len(content.images) for content in contents]),
        *files_of(root, images),
        left_out=sum((content.left_out for content in contents), layout.left_out),
        notes=layout.notes,
    )


def _class_names() -> tuple[str, ...]:
    """Names of the classes in the order of their numbers, as torchvision has them; two differ in a capital alone."""
    from torchvision.models import MobileNet_V3_Large_Weights

    return tuple(MobileNet_V3_Large_Weights.IMAGENET1K_V1.meta["categories"])


def _are_in_order(classes: Sequence[str], names: Sequence[str]) -> bool:
    """True if 1,000 classes are ImageNet's: nearly all begin with its names, as `tench, Tinca tinca` does."""
    same = [a.partition(",")[0].lower() == b.lower() for a, b in zip(classes, names, strict=True)]
    return sum(same) > 0.9 * len(same)


def _labels(root: Path, folders: Sequence[str], names: Sequence[str]) -> list[int]:
    """Number of each class, by its name in `root`."""
    plain = [name.replace(" ", "_").lower() for name in names]
    by_name = {name: number for number, name in enumerate(plain) if plain.count(name) == 1}
    by_number = {number: number for number in range(NUM_CLASSES)}
    if len(folders) == NUM_CLASSES and (all(map(_SYNSET.fullmatch, folders)) or _are_in_order(folders, names)):
        return list(range(NUM_CLASSES))  # the numbers follow the synsets' order
    if all(folder.isdecimal() for folder in folders):
        found = [by_number.get(int(folder)) for folder in folders]
    else:
        found = [by_name.get(folder.replace(" ", "_").lower()) for folder in folders]
    labels = [label for label in found if label is not None]
    if not folders or len(set(labels)) < len(folders):
        strange = next((f for f, label in zip(folders, found, strict=True) if label is None), None)
        what = f"'{strange}' is not" if strange else "two are of one class" if folders else "there is none"
        raise DataError(
            f"expected ImageNet's classes in {root}, called by number (0 to 999), by name (goldfish), "
            f"or all 1,000 by synset (n01443537); {what}"
        )
    return labels
