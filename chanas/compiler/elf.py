"""Renaming symbols in an object file (ELF of 64 bits, little-endian; Tool Interface Standard, "Executable and Linking
Format"), so that the compiled kernels of several networks can stand in one program.

Names are appended to the string table, which moves to the end of the file; nothing else moves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from chanas.errors import TargetError

_SYMBOL_TABLE = 2  # sh_type SHT_SYMTAB
_HIDDEN = 2  # st_other STV_HIDDEN
_LOCAL, _UNDEFINED = 0, 0  # st_info STB_LOCAL, st_shndx SHN_UNDEF
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def rename_symbols(content: bytes, rename: Callable[[str, bool], str]) -> bytes:
    """An object file with each named symbol called `rename(name, is_offered)`; those with a new name are seen by the
    linker alone. The file offers other files the symbols that it defines as global or weak.

    Raises:
        TargetError: it is another kind of file.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise TargetError(
            "expected object code in ELF format of 64 bits, little-endian; other formats can't be exported"
        )
    (first_section,) = struct.unpack_from("<Q", content, 40)
    section_size, num_sections = struct.unpack_from("<HH", content, 58)
    places = [first_section + i * section_size for i in range(num_sections)]
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
