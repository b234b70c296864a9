"""Archives of `torch.export` from strangers: copied into archives of our own that hold tensors and a graph alone.

`torch.export.load` runs what an archive asks for: it unpickles sample inputs and custom objects, evaluates sizes and
guards that are texts, writes names into Python code, and calls functions of any module by their names. So nothing is
left of an archive but raw tensors, whose sizes are checked, and a graph in which all texts are words and all operators
are those of ATen. What else there is, is left out where the network is the same without it, or refused.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chanas.errors import ModelError, describe

_GRAPH, _SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_TENSORS = {
    "data/weights/": ("model_weights_config.json", "weight"),
    "data/constants/": ("model_constants_config.json", "tensor"),
}
_FACTS = ("archive_format", "archive_version", ".data/version", "byteorder")
_MAX_FACT, _MAX_MEMBERS, _MAX_TEXT = 64, 10_000, 160
_CHUNK = 1 << 20
_WORDS = re.compile(r"[\w.]*", re.ASCII)
_KEYS = re.compile(r"[\w. -]*", re.ASCII)
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims|torchvision)\.[a-z_]\w*\.\w+"
    r"|torch\.ops\.higher_order\.(cond|map_impl|scan|while_loop|wrap_with_autocast|wrap_with_set_grad_enabled)"
    r"|torch\.sym_[a-z]\w*|math\.[a-z]\w*"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|pow|neg|eq|ne|lt|le|gt|ge|and_|or_|not_)",
    re.ASCII,
)
_TABLE, _NAMES = "config", ("parameter_name", "buffer_name", "tensor_constant_name", "fqn")
"""The dictionary whose keys are names of tensors, and keys of names of tensors and modules: these have hyphens, too,
and PyTorch quotes in code what is no identifier."""
_NUMBERS, _NOT_FINITE = ("as_float", "as_floats", "real", "imag"), ("Infinity", "-Infinity", "NaN")
"""Keys of numbers, and those that are written as texts."""
_OF_FILES = ("torch.ops.aten.from_file.",)
_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
_LEFT_OUT: Mapping[str, Any] = {"metadata": {}, "guards_code": [], "torch_version": ""}
"""Entries of a graph that are there for people and for other shapes, and what they become."""


def copy_program(path: Path, copy: Path) -> None:
    """Write the program of an archive into one without sample inputs, objects, notes and other files.

    Raises:
        ModelError: it is no archive of `torch.export.save`, larger inside than outside, or has a pickle, an open shape,
            or an operator or a name that could run something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive)
            graph = _read_json(archive, members[_GRAPH])
            tensors = {}
            for folder, (config, prefix) in _TENSORS.items():
                entries = _read_json(archive, members[folder + config])
                tensors[folder + config] = entries
                for name in _tensor_files(path, entries, prefix):
                    tensors[folder + name] = members[folder + name]
            with zipfile.ZipFile(copy, "w") as new:
                for name in _FACTS:
                    if name in members:
                        new.writestr(f"program/{name}", archive.read(members[name])[:_MAX_FACT])
                new.writestr(f"program/{_GRAPH}", json.dumps(_checked(path, graph)))
                new.writestr(f"program/{_SAMPLES}", b"")  # torch.export.load wants the part, and takes an empty one
                for name, part in tensors.items():
                    if isinstance(part, zipfile.ZipInfo):
                        with archive.open(part) as old, new.open(f"program/{name}", "w", force_zip64=True) as file:
                            shutil.copyfileobj(old, file, _CHUNK)
                    else:
                        new.writestr(f"program/{name}", json.dumps(part))
    except KeyError as error:
        raise ModelError(f"{path} is no program of torch.export (expected {error.args[0]} in it)") from error
    except (zipfile.BadZipFile, ValueError, TypeError, AttributeError, NotImplementedError, EOFError) as error:
        raise ModelError(
            f"{path} is no program of torch.export, or cut short ({describe(error)}); export it again"
        ) from error


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Parts of an archive by their names below its one folder.

    `torch.export.save` stores them as they are, so that nothing is inflated here.

    Raises:
        ModelError: there are too many, one is compressed, they overlap, or one is a pickle.
    """
    members = archive.infolist()
    if len(members) > _MAX_MEMBERS:
        raise ModelError(f"{path} has {len(members)} parts; expected at most {_MAX_MEMBERS}")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise ModelError(
                f"{path} has a compressed part ({member.filename}, {member.file_size} bytes of "
                f"{member.compress_size}), as torch.export.save writes none; save it again"
            )
        if member.filename.endswith((".pkl", "serialized_state_dict.pt", "serialized_constants.pt")):
            raise _pickled(path, member.filename)
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise ModelError(f"the parts of {path} are larger than the file: it is damaged, or made to fill memory")
    return {member.filename.partition("/")[2]: member for member in members}


def _read_json(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    return json.loads(archive.read(member))


def _pickled(path: Path, name: str) -> ModelError:
    return ModelError(
        f"{path} holds a pickle ({name}), which may run any code when it is opened; export the network with plain "
        "tensors as weights and inputs"
    )


def _tensor_files(path: Path, entries: Any, prefix: str) -> Iterator[str]:
    """Names of the files of tensors.

    Raises:
        ModelError: a tensor is a pickle or an object.
    """
    _checked(path, entries)
    for name, entry in entries["config"].items():
        file = entry["path_name"]
        if entry.get("use_pickle", True) or not re.fullmatch(rf"{prefix}_\d+", file):
            raise _pickled(path, name)
        yield file


def _checked(path: Path, value: Any, key: str = "") -> Any:
    """A graph, or facts about tensors, in which no text can become code; without what is `_LEFT_OUT`.

    Args:
        key: of the value in the dictionary that it lies in.

    Raises:
        ModelError: a text is more than a word, an operator is not one of ATen, or a shape is open.
    """
    if isinstance(value, dict):
        if "as_expr" in value:  # its text would be evaluated
            raise ModelError(
                f"{path} has an open shape; export the network without dynamic_shapes: it is tuned for one"
            )
        for name in value:
            _check_text(path, name, _KEYS if key == _TABLE else _WORDS)
        return {n: _LEFT_OUT[n] if n in _LEFT_OUT else _checked(path, v, n) for n, v in value.items()}
    if isinstance(value, list):
        return [_checked(path, v, key) for v in value]
    if not isinstance(value, str) or key in ("as_string", "as_strings"):  # what an operator gets, as a literal
        return value
    if key in _NUMBERS and value in _NOT_FINITE:
        return value
    if key in ("in_spec", "out_spec"):
        _check_containers(path, json.loads(value)[1])
    elif key in ("target", "as_operator"):
        if not _OPERATOR.fullmatch(value) or value.startswith(_OF_FILES):
            raise ModelError(
                f"{path} calls {value[:_MAX_TEXT]!r}, which is no operator of ATen; write the network without"
            )
    else:
        _check_text(path, value, _KEYS if key in _NAMES else _WORDS)
    return value


def _check_containers(path: Path, spec: Any) -> None:
    """
    Raises:
        ModelError: what a network takes or gives lies in something else than tuples, lists and dictionaries.
    """
    if spec["type"] not in _CONTAINERS:
        raise ModelError(
            f"{path} takes or gives a {str(spec['type'])[:_MAX_TEXT]}; export it with tensors in tuples, lists and "
            "dictionaries alone"
        )
    keys = json.loads(spec["context"] or "null")
    for key in keys if isinstance(keys, list) else []:
        _check_text(path, key, _KEYS)
    for child in spec["children_spec"]:
        _check_containers(path, child)


def _check_text(path: Path, text: Any, allowed: re.Pattern[str]) -> None:
    if not isinstance(text, str) or not allowed.fullmatch(text):
        raise ModelError(
            f"{path} has the name {str(text)[:_MAX_TEXT]!r}; expected letters, digits, dots, hyphens and underscores"
        )
