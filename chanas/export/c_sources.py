"""The files of an exported network that are text: `c_templates` filled in. `@NAME@` and the like stand for values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable, Mapping
from importlib import resources

import numpy as np

_TAKEN = {"clean"}  # by the Makefile, which names its program after the network
# Words of C and C++, and what compilers and headers take for macros, as far as small letters go.
_RESERVED = """
alignas alignof and and_eq asm assert auto bitand bitor bool break case catch char class compl complex concept const
const_cast consteval constexpr constinit continue co_await co_return co_yield decltype default delete do double
dynamic_cast else enum errno explicit export extern false float for friend goto i386 if inline int linux long mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
restrict return short signed sizeof static static_assert static_cast stderr stdin stdout struct switch template this
thread_local throw true try typedef typeid typename typeof union unix unsigned using virtual void volatile wchar_t while
xor xor_eq
"""
_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")


def filled(template: str, values: Mapping[str, object]) -> str:
    """A file of `c_templates` with its placeholders replaced.

    Raises:
        KeyError: a placeholder has no value.
    """
    text = (resources.files("chanas.export") / "c_templates" / template).read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), text)


def identifier(text: str) -> str:
    """A name for C out of any: small letters, digits and underscores, a letter first. `Net-v2` becomes `net_v2`, and
    `clean`, which is a target of the Makefile, `net_clean`."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return name if name[:1].isalpha() and name not in _TAKEN else f"net_{name}".rstrip("_")


def parameter(text: str, taken: Container[str]) -> str:
    """A name for a parameter of a function that is none of those `taken`. `input.1` becomes `input_1`, `int` `int_`."""
    name = identifier(text)
    name = f"{name}_" if name in _RESERVED.split() else name
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
