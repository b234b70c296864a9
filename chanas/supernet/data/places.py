"""The kind of data set that lies at a path."""

from __future__ import annotations

from pathlib import Path

from chanas.supernet.data.hugging_face import is_saved
from chanas.supernet.data.shards import are_shards


def kind_of(root: Path) -> str:
    """`hf` or `webdataset`, else `imagefolder`: the names that `dataset` of a config has for them."""
    return "webdataset" if are_shards(root) else "hf" if is_saved(root) else "imagefolder"
