"""Networks that a search has found, with the weights of their bundles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from chanas.bundle.codesign import CoDesign
from chanas.bundle.document import WEIGHTS
from chanas.bundle.places import bundle_at
from chanas.bundle.tuned import BUNDLE
from chanas.errors import ModelError
from chanas.models.sources.model import OpenedModel, Shapes, file_name
from chanas.models.sources.torch_models import opened_program, quiet, weights_digest
from chanas.network.preprocess import Preprocess, preprocess_of

_OF_SHAPE = ("resolution", "columns", "layout")
"""Fields that `preprocess_of` reads off an input's shape."""


def open_bundle(source: str | Path, shapes: Shapes) -> OpenedModel:
    """The network of a bundle, or of the newest one of a run, as PyTorch exports it: for one image, with random weights
    where the bundle has none.

    Raises:
        CheckpointError: there is no bundle, or it is damaged.
        ModelError: the image is to have another shape, or the bundle prepares pictures in a way that is not known for
            networks of such a shape.
        ConfigError: it prepares other channels than its network has.
    """
    place = bundle_at(source)
    bundle = CoDesign.load(place)
    if place.is_symlink():  # the newest one of the run, now
        place = place.parent / place.readlink()
    size = bundle.architecture.resolution
    shape = (1, bundle.space.in_channels, size, size)
    if any(tuple(given) != shape for given in shapes.values()):
        raise ModelError(f"the network of bundle {place} takes an image {list(shape)}; leave out --shape")
    network = bundle.torch_module()
    origin = {
        "kind": BUNDLE,
        "name": place.absolute().name,
        "source": str(place),
        "architecture": bundle.architecture.key,
        "sha256": weights_digest(network),
        "torch": torch.__version__,
    }
    if bundle.has_weights:
        origin["weights"] = str(place / WEIGHTS)
    pictures: Mapping[str, Any] = {}
    if bundle.preprocess is not None:
        pictures = _changes(bundle.preprocess, shape, place)
        origin["pictures"] = "the bundle"
    with quiet():
        program = torch.export.export(network, (torch.zeros(shape),))
    opened = opened_program(file_name(bundle.architecture.key), program, origin, pictures=pictures)
    return dataclasses.replace(opened, class_names=bundle.class_names)


def _changes(preprocess: Preprocess, shape: Sequence[int], place: Path) -> Mapping[str, Any]:
    """The changes with which `preprocess_of` makes a bundle's preprocessing.

    Raises:
        ModelError: there are none.
        ConfigError: it is for other channels than the network has.
    """
    fields = (field.name for field in dataclasses.fields(preprocess))
    changes = {name: getattr(preprocess, name) for name in fields if name not in _OF_SHAPE}
    if preprocess_of(shape, changes) != preprocess:
        raise ModelError(
            f"bundle {place} prepares pictures as {preprocess.to_json()}, which are not images {list(shape)}; export "
            "its network (`chanas export`) and tune the file"
        )
    return changes
