"""Renaming symbols in a WebAssembly object file (WebAssembly's tool conventions, "Linking"), as `elf.py` does in ELF.

Names are in the symbol table of the section `linking`; a function of elsewhere has none there but that of its import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chanas.errors import TargetError

MAGIC = b"\0asm\1\0\0\0"
_CUSTOM, _IMPORT = 0, 2  # sections
_SYMBOL_TABLE = 8  # subsection of `linking`
_FUNCTION, _DATA, _SECTION = 0, 1, 3  # kinds of symbols; others are like functions
_LOCAL, _UNDEFINED, _EXPLICIT_NAME, _HIDDEN = 0x02, 0x10, 0x40, 0x04
_VISIBLE = 0x04 | 0x20  # bits of a symbol's visibility, WASM_SYM_EXPORTED among them
_SIZE_BYTES = 5  # of a section's size, as LLVM pads it


@dataclass
class Reader:
    """A place in a file."""

    content: bytes
    at: int = 0

    def byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def number(self) -> int:
        """An unsigned LEB128."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def take(self, num: int) -> bytes:
        self.at += num
        return self.content[self.at - num : self.at]

    def text(self) -> str:
        return self.take(self.number()).decode()

    def parts(self) -> Iterator[tuple[int, bytes]]:
        """Kind and content of each part to the end."""
        while self.at < len(self.content):
            kind = self.byte()
            yield kind, self.take(self.number())


def rename_symbols(content: bytes, rename: Callable[[str, bool], str]) -> bytes:
    """An object file with each named symbol called `rename(name, is_offered)`; those with a new name are seen by the
    linker alone. The file offers other files the symbols that it defines and that are not local.

    Raises:
        TargetError: it is another kind of file.
    """
    if not content.startswith(MAGIC):
        raise TargetError("expected object code in WebAssembly's format; other formats can't be exported")
    imported: list[str] = []
    changed = bytearray(MAGIC)
    for kind, section in Reader(content, len(MAGIC)).parts():
        if kind == _IMPORT:
            imported = _imported_functions(section)
        part = section
        if kind == _CUSTOM:
            reader = Reader(section)
            if reader.text() == "linking":
                part = section[: reader.at] + reader.take(1)  # the version
                for number, subsection in reader.parts():
                    new = _symbol_table(subsection, imported, rename) if number == _SYMBOL_TABLE else subsection
                    part += _part(number, new)
        changed += _part(kind, part)
    return bytes(changed)


def _imported_functions(section: bytes) -> list[str]:
    reader, names = Reader(section), []
    for _ in range(reader.number()):
        reader.text()
        name, kind = reader.text(), reader.byte()
        if kind == 0:
            names.append(name)
            reader.number()
        elif kind == 3:  # a global: type, whether it changes
            reader.take(2)
        elif kind == 4:  # a tag
            reader.take(1)
            reader.number()
        else:  # a table, or a memory: limits
            if kind == 1:
                reader.byte()
            for _ in range(1 + reader.byte() % 2):
                reader.number()
    return names


def _symbol_table(content: bytes, imported: list[str], rename: Callable[[str, bool], str]) -> bytes:
    reader = Reader(content)
    num = reader.number()
    table = _number(num)
    for _ in range(num):
        kind, flags = reader.byte(), reader.number()
        index = b"" if kind == _DATA else _number(reader.number())
        defined, is_named = not flags & _UNDEFINED, bool(flags & _EXPLICIT_NAME)
        name = None
        if kind == _DATA or (kind != _SECTION and (defined or is_named)):
            name = reader.text()
        elif kind == _FUNCTION:
            name = imported[Reader(index).number()]
        rest = b"".join(_number(reader.number()) for _ in range(3)) if kind == _DATA and defined else b""
        new = name if name is None else rename(name, defined and not flags & _LOCAL)
        if new != name:
            flags = flags & ~_VISIBLE | _HIDDEN | (0 if defined or kind == _DATA else _EXPLICIT_NAME)
            is_named = bool(flags & _EXPLICIT_NAME)
        written = kind == _DATA or (kind != _SECTION and (defined or is_named))
        table += bytes([kind]) + _number(flags) + index
        if written:
            assert new is not None
            table += _number(len(new.encode())) + new.encode()
        table += rest
    return table


def _number(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def _part(kind: int, content: bytes) -> bytes:
    size = len(content)
    padded = [size >> 7 * i & 0x7F | (0x80 if i < _SIZE_BYTES - 1 else 0) for i in range(_SIZE_BYTES)]
    return bytes([kind, *padded]) + content
