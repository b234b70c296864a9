"""The folder of a tuned network, written whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save_file

from chanas.bundle.tuned import DOCUMENT, MODULE, SOURCE, WEIGHTS
from chanas.files.writing import file_digest, replacing_folder, write_json

if TYPE_CHECKING:
    from chanas.prescheduler.models.module import ProgramModule


def write_folder(folder: Path, library: bytes, made: ProgramModule, document: Mapping[str, Any]) -> None:
    """Write module, weights and `tuned.json`; a folder that is there is replaced when the new one is complete.

    Raises:
        ChanasError: it cannot be written.
    """
    names = [f"parameter{i}" for i in range(len(made.parameters))]
    with replacing_folder(folder) as temporary:
        (temporary / MODULE).write_bytes(library)
        save_file(dict(zip(names, made.parameters, strict=True)), temporary / WEIGHTS)
        (temporary / SOURCE).write_text(made.to_json(), encoding="utf-8")
        hashes = {name: file_digest(temporary / name) for name in (MODULE, WEIGHTS, SOURCE)}
        write_json(temporary / DOCUMENT, {**document, "parameters": names, "hashes": hashes})
