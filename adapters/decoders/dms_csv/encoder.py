"""Texts to CSV rows."""

from __future__ import annotations

from collections.abc import Iterable

from ..common.csv_dialect import CsvDialect

LINE_ENDS = frozenset("\r\n")


def to_row(texts: Iterable[str | None], dialect: CsvDialect) -> bytes:
    """One row that reads back as these texts. If the dialect has no quotes, all texts must be writable."""
    return dialect.delimiter.join(_to_field(text, dialect) for text in texts).encode()


def is_writable(text: str, dialect: CsvDialect) -> bool:
    """True if a text can be a field."""
    if dialect.quote:
        return True
    return not LINE_ENDS & set(text) and (dialect.escape is not None or dialect.delimiter not in text)


def _to_field(text: str | None, dialect: CsvDialect) -> str:
    """The field of a text. Null is not quoted."""
    if text is None:
        return _escape(dialect.null_value, dialect)
    if not dialect.quote:
        return _escape(text, dialect)
    inside = text.replace(dialect.escape, dialect.escape * 2) if dialect.escape else text
    return f"{dialect.quote}{inside.replace(dialect.quote, dialect.quote * 2)}{dialect.quote}"


def _escape(text: str, dialect: CsvDialect) -> str:
    if dialect.escape is None:
        return text
    whole = text.replace(dialect.escape, dialect.escape * 2)
    return whole.replace(dialect.delimiter, dialect.escape + dialect.delimiter)
