"""Object files (ELF of 64 bits, little-endian; Tool Interface Standard, "Executable and Linking Format"): the sizes of
their sections, and symbols renamed, so that the compiled kernels of several networks can stand in one program.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from chanas.errors import TargetError

_SYMBOL_TABLE = 2  # sh_type SHT_SYMTAB
_HIDDEN = 2  # st_other STV_HIDDEN
_LOCAL, _UNDEFINED = 0, 0  # st_info STB_LOCAL, st_shndx SHN_UNDEF
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def _section_places(content: bytes) -> list[int]:
    """Places of the sections' headers."""
    (first,) = struct.unpack_from("<Q", content, 40)
    size, num = struct.unpack_from("<HH", content, 58)
    return [first + i * size for i in range(num)]


def section_sizes(content: bytes) -> Iterator[tuple[str, int]]:
    """Name and size in bytes of each section."""
    headers = [_SECTION.unpack_from(content, place) for place in _section_places(content)]
    (names_index,) = struct.unpack_from("<H", content, 62)
    for name_at, _, _, _, _, size, *_ in headers:
        start = headers[names_index][4] + name_at
        yield content[start : content.index(b"\0", start)].decode(), size


def rename_symbols(content: bytes, rename: Callable[[str, bool], str]) -> bytes:
    """An object file with each named symbol called `rename(name, is_offered)`; those with a new name are seen by the
    linker alone. The file offers other files the symbols that it defines as global or weak.

    Names are appended to the string table, which moves to the end of the file; nothing else moves.

    Raises:
        TargetError: it is another kind of file.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise TargetError(
            "expected object code in ELF format of 64 bits, little-endian; other formats can't be exported"
        )
    places = _section_places(content)
    sections = [_SECTION.unpack_from(content, place) for place in places]
    changed = bytearray(content)
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        start, length = sections[link][4:6]
        names = bytearray(content[start : start + length])
        for at in range(offset, offset + size, _SYMBOL.size):
            name_at, info, other, *rest = _SYMBOL.unpack_from(content, at)
            name = names[name_at : names.index(0, name_at)].decode()
            new = rename(name, info >> 4 != _LOCAL and rest[0] != _UNDEFINED)
            if new != name:
                _SYMBOL.pack_into(changed, at, len(names), info, other & ~3 | _HIDDEN, *rest)
                names += new.encode() + b"\0"
        header = list(sections[link])
        header[4:6] = len(changed), len(names)
        _SECTION.pack_into(changed, places[link], *header)
        changed += names
    return bytes(changed)
