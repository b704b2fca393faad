"""Names of tables and lanes as folder names. An allow-list, so that no name leaves the lake or is hidden in it."""

from __future__ import annotations

import re
from hashlib import sha256

from replicator.domain.errors import ConfigProblem

LONGEST = 200
_HASHED = "_h"
_PLAIN = re.compile(r"[A-Za-z0-9.-]")
_ESCAPE = re.compile(r"_x([0-9A-F]{4,6})_")
_ESCAPE_LIKE = re.compile(r"x[0-9A-Fa-f]{4}|h[0-9a-f]{32}$")


def encode_name(name: str) -> str:
    """`name` as the name of one folder: `[A-Za-z0-9_.-]` stay, every other character becomes `_xHHHH_`.

    A leading dot or underscore is escaped, too (such folders are hidden, or ours), so `.` and `..` cannot
    occur. Distinct names stay distinct, and `decode_name` returns the name. A result of more than 200 bytes is
    replaced by its start and a hash of the whole name. Raises ConfigProblem for the empty name.
    """
    if not name:
        raise ConfigProblem("a target has an empty name", next_step="Give it a name with `into`.")
    whole = "".join(_encode_character(name, i) for i in range(len(name)))
    if len(whole) <= LONGEST:
        return whole
    return whole[: LONGEST - 40] + _HASHED + sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def decode_name(folder: str) -> str:
    """The name that `encode_name` encoded as `folder`; for a hashed one the folder's own name."""
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)), folder)


def is_hashed(folder: str) -> bool:
    """True when `decode_name` cannot return the original name."""
    return len(folder) > LONGEST - 40 and re.search(r"_h[0-9a-f]{32}$", folder) is not None


def _encode_character(name: str, i: int) -> str:
    char = name[i]
    if _PLAIN.fullmatch(char) and not (i == 0 and char == "."):
        return char
    if char == "_" and i > 0 and not _ESCAPE_LIKE.match(name, i + 1):
        return char
    return f"_x{ord(char):04X}_"
