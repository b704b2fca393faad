"""Texts to rows of CSV."""

from __future__ import annotations

from collections.abc import Iterable

from ...arrow.dms import Dialect

LINE_ENDS = frozenset("\r\n")


def row_of(texts: Iterable[str | None], dialect: Dialect) -> bytes:
    """One row, which is read as these texts. Of a dialect without quotes all of them must be writable."""
    return dialect.delimiter.join(_field(text, dialect) for text in texts).encode()


def is_writable(text: str, dialect: Dialect) -> bool:
    """Whether a text can be a field."""
    if dialect.quote:
        return True
    return not LINE_ENDS & set(text) and (dialect.escape is not None or dialect.delimiter not in text)


def _field(text: str | None, dialect: Dialect) -> str:
    """Null is what is not quoted."""
    if text is None:
        return _escaped(dialect.null_value, dialect)
    if not dialect.quote:
        return _escaped(text, dialect)
    inside = text.replace(dialect.escape, dialect.escape * 2) if dialect.escape else text
    return f"{dialect.quote}{inside.replace(dialect.quote, dialect.quote * 2)}{dialect.quote}"


def _escaped(text: str, dialect: Dialect) -> str:
    if dialect.escape is None:
        return text
    whole = text.replace(dialect.escape, dialect.escape * 2)
    return whole.replace(dialect.delimiter, dialect.escape + dialect.delimiter)
