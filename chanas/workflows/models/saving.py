"""The folder of a tuned network, written whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from chanas.bundle.tuned import DOCUMENT, MODULE, WEIGHTS, Array
from chanas.files.writing import file_digest, replacing_folder, write_json


def write_folder(folder: Path, library: bytes, parameters: Sequence[Array], document: Mapping[str, Any]) -> None:
    """Write module, weights and `tuned.json`; a folder that is there is replaced when the new one is complete.

    Raises:
        ChanasError: it cannot be written.
    """
    names = [f"parameter{i}" for i in range(len(parameters))]
    with replacing_folder(folder) as temporary:
        (temporary / MODULE).write_bytes(library)
        save_file(dict(zip(names, parameters, strict=True)), temporary / WEIGHTS)
        hashes = {name: file_digest(temporary / name) for name in (MODULE, WEIGHTS)}
        write_json(temporary / DOCUMENT, {**document, "parameters": names, "hashes": hashes})
