"""Character set names of sources, and the Python codecs that decode them in the same way."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from replicator.domain.errors import RejectCode

from ...arrow.record_errors import ValueMisfit

BINARY = "binary"
UNDEFINED = frozenset(b"\x81\x8d\x8f\x90\x9d")
"""Bytes without a character in Windows code page 1252. MySQL's latin1 maps them to control characters."""

CODECS = {
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8"),
    **dict.fromkeys(("ascii", "usascii"), "ascii"),
    **dict.fromkeys(("utf16", "utf16be", "ucs2"), "utf-16-be"),
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "big5": "big5",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "ujis": "euc_jp",
    "euckr": "euc_kr",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "tis620": "tis-620",
    **{f"cp{n}": f"cp{n}" for n in (850, 852, 866, 1250, 1251, 1256, 1257)},
}


def _decode_latin1(value: bytes) -> str:
    if value.isascii():
        return value.decode("ascii")
    return "".join([chr(b) if b in UNDEFINED else bytes((b,)).decode("cp1252") for b in value])


def _find_decoder(codec: str) -> Callable[[bytes], str]:
    if codec == "utf-8":
        return bytes.decode
    read = codecs.lookup(codec).decode
    return lambda value: read(value, "strict")[0]


DECODERS = {name: _find_decoder(codec) for name, codec in CODECS.items()} | dict.fromkeys(
    ("latin1", "cp1252"), _decode_latin1
)


def decode_text(charset: str, value: bytes) -> str:
    """The text of bytes in a character set. Raises ValueMisfit for an unknown character set and for invalid bytes."""
    decode = DECODERS.get(charset)
    if decode is None:
        decode = DECODERS.get(charset.lower().replace("-", "").replace("_", ""))
    if decode is None:
        raise ValueMisfit(RejectCode.MALFORMED, f"holds text in the character set {charset[:40]!r}, which is not known")
    try:
        return decode(value)
    except UnicodeError:
        raise ValueMisfit(
            RejectCode.MALFORMED, f"holds bytes that are no text in the character set {charset[:40]!r}"
        ) from None
