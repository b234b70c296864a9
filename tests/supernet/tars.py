"""Tar shards of small images."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image


def png(value: int, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (9, 7), (value,) * 3 if mode == "RGB" else value).save(file, "png")
    return file.getvalue()


def write_shard(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
