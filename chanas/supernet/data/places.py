"""Places of images: the kind of data set at a path, and the place of a run's images after they were moved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chanas.files.documents import Document
from chanas.files.writing import write_json
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.hugging_face import is_saved
from chanas.supernet.data.shards import are_shards

SCHEMA = 1


@dataclass(frozen=True)
class _Place:
    """Content of the file next to a run's splits."""

    schema: int
    root: str


_PLACE = Document("place of images", _Place, "name it again with `chanas eval RUN --images FOLDER`", SCHEMA)


def kind_of(root: Path) -> str:
    """`hf` or `webdataset`, else `imagefolder`: the names that `dataset` of a config has for them."""
    return "webdataset" if are_shards(root) else "hf" if is_saved(root) else "imagefolder"


def place_file(splits: Path) -> Path:
    """The file that says where the images of a run lie, if not where they lay when they were split."""
    return splits.with_name("images.json")


def placed(config: DataConfig, splits: Path) -> DataConfig:
    """`config` with the place where the images that were split lie now.

    Raises:
        CheckpointError: the file about it is damaged.
    """
    path = place_file(splits)
    return moved(config, Path(_PLACE.read(path)["root"])) if path.is_file() else config


def moved(config: DataConfig, root: Path) -> DataConfig:
    """`config` with its images at `root`."""
    return config.model_copy(update={"root": root.expanduser().absolute()})


def remember_place(splits: Path, config: DataConfig, stored: DataConfig) -> None:
    """Leave word of where images that were split lie now, if not where `stored` says."""
    if config.root == stored.root:
        place_file(splits).unlink(missing_ok=True)
    elif place_file(splits).is_file() and placed(stored, splits).root == config.root:
        return
    else:
        write_json(place_file(splits), {"schema": SCHEMA, "root": str(config.root)})
