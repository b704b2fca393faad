"""Two values side by side, as text that shows how they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

from replicator.domain.plain_values import to_plain, to_printable

NULL = "NULL"
CONTEXT = 10
"""Characters of a long value that are shown in front of the difference."""
CUT = "…"
"""Stands outside the quotes, so that it is no part of the value."""


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value as text, in three parts. Only the middle one, `changed`, differs from the other value."""

    before: str
    changed: str
    after: str

    def __str__(self) -> str:
        return self.before + self.changed + self.after


@dataclass(frozen=True, slots=True)
class _Window:
    """The characters from `begin` to `end`. All but the `first` and the `last` ones of a text differ."""

    begin: int
    end: int
    first: int
    last: int
    escaped: bool

    def show(self, text: str, *, quoted: bool) -> ShownValue:
        end = min(len(text), self.end)
        middle = min(self.first, end)
        after = max(middle, min(len(text) - self.last, end))
        parts = text[self.begin : middle], text[middle:after], text[after:end]
        head, changed, tail = (_escape(part, quoted=quoted, escaped=self.escaped) for part in parts)
        quote = "'" if quoted else ""
        return ShownValue(
            f"{CUT if self.begin else ''}{quote}{head}", changed, f"{tail}{quote}{CUT if end < len(text) else ''}"
        )


def format_value(value: Any, width: int) -> str:
    """A value in one line, with at most about `width` characters of it.

    Texts are in single quotes, so that blanks at the end show, and `NULL` is no text. A backslash, a line break and other
    invisible characters of a text are escaped.
    """
    shown, _ = format_pair(value, value, width)
    return str(shown)


def format_pair(expected: Any, actual: Any, width: int) -> tuple[ShownValue, ShownValue]:
    """Two values as in `format_value`. Long values are cut to the part with the first difference.

    Texts that look alike, such as two forms of an accent, are escaped.
    """
    left, right = _to_text(expected), _to_text(actual)
    if left == right and _is_text(expected) == _is_text(actual):
        first, last = 0, len(left)
    elif _is_text(expected) != _is_text(actual) or isinstance(expected, bool):
        # A number and its digits as text differ as a whole, and so do true and false.
        first = last = 0
    else:
        first, last = _count_common(left, right)
    # Both begin at the same character: otherwise two ends of other lengths could look alike.
    begin = max(0, min(first - CONTEXT, max(len(left), len(right)) - width))
    is_look_alike = left != right and normalize("NFKC", left) == normalize("NFKC", right)
    window = _Window(begin, begin + width, first, last, is_look_alike)
    return window.show(left, quoted=_is_text(expected)), window.show(right, quoted=_is_text(actual))


def format_key(key: Mapping[str, Any], width: int) -> str:
    """The key of a row, such as `id=1, tenant='north'`."""
    return ", ".join(f"{escape_text(name)}={format_value(value, width)}" for name, value in key.items())


def escape_text(text: str) -> str:
    """`text` in one line, without control characters."""
    return to_printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _to_text(value: Any) -> str:
    value = to_plain(value)
    if value is None:
        return NULL
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _count_common(left: str, right: str) -> tuple[int, int]:
    """The lengths of the common beginning, and of the common end of the rest."""
    most = min(len(left), len(right))
    first = next((at for at in range(most) if left[at] != right[at]), most)
    last = next((at for at in range(most - first) if left[-1 - at] != right[-1 - at]), most - first)
    return first, last


def _escape(part: str, *, quoted: bool, escaped: bool) -> str:
    if escaped:
        return part.encode("unicode_escape").decode()
    return escape_text(part.replace("\\", "\\\\") if quoted else part)
