"""Transaction files (`PreserveTransactions`, `CdcPath`): each row names its table.

`operation,table_name,database_schema_name,field_value,...` (AWS, "Capturing data changes (CDC) including transaction
order on the S3 target"). Such files have no header row.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ....decoders.common.csv_dialect import CsvDialect, escape_sign


class TransactionRow(NamedTuple):
    """A row of a transaction file: its table, and the row as in a file of that table."""

    table: str
    row: bytes


class TransactionRows:
    """Parses rows of such files."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._delimiter, self._quote = dialect.delimiter.encode(), (dialect.quote or "").encode()
        d, q = escape_sign(dialect.delimiter), escape_sign(dialect.quote) if dialect.quote else ""
        plain = f"[^{d}{q}\\r\\n]*"
        field = f"(?:{q}(?:[^{q}]|{q}{q})*{q}|{plain})" if q else plain
        self._begins = re.compile(f"({field}){d}({field}){d}({field})(?:{d}|$)".encode())

    def parse_row(self, row: bytes) -> TransactionRow | ValueError:
        """The row, or the reason why it is invalid."""
        found = self._begins.match(row)
        if found is None:
            return ValueError("it does not begin with an operation, a table and a schema")
        try:
            table, schema = (self._to_text(found[i]).decode() for i in (2, 3))
        except UnicodeDecodeError:
            return ValueError("the name of its table is not UTF-8")
        if not table or not schema:
            return ValueError("it does not say which table it is of")
        rest = row[found.end() :]
        return TransactionRow(f"{schema}.{table}", found[1] + self._delimiter + rest)

    def _to_text(self, field: bytes) -> bytes:
        quote = self._quote
        if not quote or not field.startswith(quote):
            return field
        return field[1:-1].replace(quote + quote, quote)
