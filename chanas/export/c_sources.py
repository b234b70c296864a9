"""The files of an exported network that are text: `c_templates` filled in. `@NAME@` and the like stand for values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable, Mapping
from importlib import resources

import numpy as np

_TAKEN = {"clean", "makefile"}  # the program that the Makefile builds is called after the network
MAX_NAME = 63
"""Characters of a name: what C99 tells apart, and what is left of a file's name for endings."""
_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")


def filled(template: str, values: Mapping[str, object]) -> str:
    """A file of `c_templates` with its placeholders replaced.

    Raises:
        KeyError: a placeholder has no value.
    """
    text = (resources.files("chanas.export") / "c_templates" / template).read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), text)


def identifier(text: str) -> str:
    """A part of a name in C out of any text: small letters, digits and single underscores, a letter first. `Net-v2`
    becomes `net_v2`, and `clean`, which is a target of the Makefile, `net_clean`."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    name = name if name[:1].isalpha() and name not in _TAKEN else f"net_{name}"
    return name[:MAX_NAME].rstrip("_")


def distinct(text: str, taken: Container[str]) -> str:
    """An identifier that is none of those `taken`: `input.1` becomes `input_1`, or `input_1_2`."""
    name = identifier(text)
    numbered = (f"{name}_{i}" for i in itertools.count(2))
    return name if name not in taken else next(n for n in numbered if n not in taken)


def string(text: str) -> str:
    r"""A string literal in UTF-8: `ab"é` becomes `"ab\"\303\251"`."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


def comment(text: str) -> str:
    """Text that neither ends a comment nor begins one, on one line."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


def number(value: float) -> str:
    """A float literal."""
    return f"{float(np.float32(value))!r}f"


def numbers(values: Iterable[float]) -> str:
    return ", ".join(map(number, values))
