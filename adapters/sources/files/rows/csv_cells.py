"""CSV rows to texts of cells."""

from __future__ import annotations

import re

from replicator.domain.errors import Reject, RejectCode

from ....decoders.common.csv_dialect import CsvDialect, escape_sign

Cells = list[str | None]
NOT_UTF8 = Reject(RejectCode.MALFORMED, "the row holds bytes that are not UTF-8")
NOT_A_ROW = Reject(RejectCode.MALFORMED, "the row has quotes that do not stand around whole values")


class CsvCellParser:
    """Parses rows of a dialect (`adapters.decoders.common.csv_dialect.CsvDialect`). The dialect's text for null is null only
    without quotes."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._delimiter, self._null = dialect.delimiter, dialect.null_value
        self._signs = tuple(sign for sign in (dialect.quote, dialect.escape) if sign)
        d, q, e = (escape_sign(sign) if sign else "" for sign in (dialect.delimiter, dialect.quote, dialect.escape))
        escaped = f"|{e}(?s:.)" if e else ""
        plain = f"(?P<plain>(?:[^{d}{e}]{escaped})*)"
        quoted = f"{q}(?P<quoted>(?:[^{q}{e}]|{q}{q}{escaped})*+){q}|(?!{q})" if q else ""
        self._cell = re.compile(f"(?:{quoted}{plain})(?P<more>{d}|\\Z)")
        self._double, self._quote = 2 * (dialect.quote or ""), dialect.quote or ""
        self._escaped = re.compile(f"{e}((?s:.))") if e else None

    def __call__(self, row: bytes) -> Cells | Reject:
        """The cells of a row without its line end, or the error."""
        try:
            text = row.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
        if not any(sign in text for sign in self._signs):
            return [None if cell == self._null else cell for cell in text.split(self._delimiter)]
        cells: Cells = []
        at, more = 0, True
        while more:
            found = self._cell.match(text, at)
            if found is None:
                return NOT_A_ROW
            cells.append(self._parse_value(found))
            at, more = found.end(), bool(found["more"])
        return cells

    def _parse_value(self, found: re.Match[str]) -> str | None:
        quoted = found["quoted"] if self._quote else None
        if quoted is None:
            plain = found["plain"]
            return None if plain == self._null else self._unescape(plain)
        if self._escaped is None:
            return quoted.replace(self._double, self._quote)
        # From left to right: an escaped character is never half of a double quote.
        return re.sub(rf"{self._escaped.pattern}|{escape_sign(self._quote)}{{2}}", lambda m: m[1] or self._quote, quoted)

    def _unescape(self, text: str) -> str:
        return self._escaped.sub(r"\1", text) if self._escaped else text
