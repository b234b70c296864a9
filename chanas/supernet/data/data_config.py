"""The part of a training config about images, and its checks when it is read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from chanas.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

# mean and deviation of ImageNet's training pixels, the field's usual normalisation
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class SplitFractions(BaseModel):
    """Shares of each class that leave the training images. `test` is ignored by sets with an official test split."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gap: float = Field(default=0.1, gt=0.0, lt=1.0)
    holdout: float = Field(default=0.15, gt=0.0, lt=1.0)
    test: float = Field(default=0.2, gt=0.0, lt=1.0)

    @model_validator(mode="after")
    def _leaves_training_images(self) -> SplitFractions:
        if self.gap + self.holdout + self.test >= 1.0:
            raise ValueError("gap + holdout + test must leave a share for training, so be below 1")
        return self


class AugmentConfig(BaseModel):
    """Random changes of training images.

    Sets of small images in memory (digits, cifar10, ...) are rotated, shifted and scaled; sets of image files are
    cropped at a random place and aspect ratio (Inception's crop). Either may be mirrored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rotation_deg: float = Field(default=0.0, ge=0.0, le=180.0)
    """In-memory sets: uniform in ±rotation_deg."""
    shift: float = Field(default=0.0, ge=0.0, lt=1.0)
    """In-memory sets: uniform in ±shift of the side, each direction on its own."""
    scale: float = Field(default=0.0, ge=0.0, lt=1.0)
    """In-memory sets: uniform in 1 ± scale."""
    padding: Literal["zeros", "border", "reflection"] = "zeros"
    """In-memory sets: what stands beyond the image's edge."""
    min_crop_area: float = Field(default=0.08, gt=0.0, le=1.0)
    """Image files: the smallest share of the area that a crop keeps."""
    flip: bool = False
    """Mirror left and right with probability one half; not for digits or letters."""


class DataConfig(BaseModel):
    """The images, their split, and their way to a network's input."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = "digits"
    root: Path | None = None
    """Folder of an image folder, or the one in which torchvision's sets lie."""
    skip_bad: bool = False
    """Leave out images that cannot be used, instead of refusing the set."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    crop_ratio: float = Field(default=1.0, gt=0.0, le=1.0)
    """Evaluation: the centre crop's side over the resized short side (0.875 is usual on ImageNet)."""
    splits: SplitFractions = SplitFractions()
    augment: AugmentConfig = AugmentConfig()
    in_memory: bool = False
    """Decode all images once before training and keep them; all have to be of one size, and are augmented as in-memory
    sets are."""
    num_workers: int = Field(default=0, ge=0)
    """Processes that decode image files while the network trains; sets in memory need none."""

    @model_validator(mode="before")
    @classmethod
    def _without_convert_rgb(cls, data: Any) -> Any:
        """Older files say whether images that are not RGB are converted; now all are."""
        return {k: v for k, v in data.items() if k != "convert_rgb"} if isinstance(data, dict) else data

    @field_validator("root")
    @classmethod
    def _root_is_absolute(cls, root: Path | None) -> Path | None:
        """Make the root absolute, so that a checkpoint finds its images whatever folder it is used from."""
        return None if root is None else root.expanduser().absolute()

    @model_validator(mode="after")
    def _std_is_positive(self) -> DataConfig:
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {list(self.std)}")
        return self


@dataclass(frozen=True)
class LoaderConfig:
    """The number of images that a step takes from each split (0 gap images: none), and the seed."""

    batch_size: int
    gap_batch_size: int
    seed: int
    add_gap_to_train: bool = False


def validated(model: type[Model], data: Any, where: str) -> Model:
    """`data` as a `model`.

    Raises:
        ConfigError: a key is unknown or missing, or a value is not allowed; the message names the first one.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected a mapping of {model.__name__} fields, got {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # an unknown key is often a missing one that is misspelled
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        missing = [".".join(map(str, e["loc"])) for e in error.errors() if e["type"] == "missing"]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            lacking = f" ({', '.join(missing)} missing)" if missing else ""
            known = _known_keys(model, first["loc"])
            raise ConfigError(f"{where}: unknown key '{key}'{lacking}; known here: {known}") from None
        if first["type"] == "missing":
            named = "', '".join(missing)
            is_missing = "is missing" if len(missing) == 1 else "are missing"
            raise ConfigError(f"{where}: key{'s' * (len(missing) > 1)} '{named}' {is_missing}") from None
        reason = str(first["msg"]).removeprefix("Value error, ")
        got = "" if isinstance(first["input"], dict) else f", got {first['input']!r}"
        raise ConfigError(f"{where}: {key + ': ' if key else ''}{reason}{got}") from None


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """The field names beside an unknown key; `location` leads to it through nested models and lists of them."""
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = (annotation, *getattr(annotation, "__args__", ()))
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return ", ".join(sorted(model.model_fields))
