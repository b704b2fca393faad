"""Layouts of rows: from the header row of their file, or from declared columns."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import msgspec

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import RESERVED_PREFIXES, Column

from ...arrow.record_errors import malformed_reject
from ...arrow.value_readers import text_reader
from ..json.type_names import find_type_reader
from .cells import read_names
from .options import DmsCsvOptions

MAX_LAYOUTS = 4096
DECLARED = "declared"
WAY_OUT = (
    "declare them with `schema:` of the table, or have DMS write header rows (AddColumnName) and set `csv.header: true`"
)
UNDECLARED = malformed_reject(f"its file has no header row and its table declares no columns: {WAY_OUT}")


@dataclass(frozen=True, eq=False)
class CsvLayout:
    """The columns of the table and of its rows, or an error. `rows`: the names in a row, one tuple per width.
    `fingerprint` distinguishes layouts of a table."""

    fingerprint: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    error: Reject | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """The possible numbers of columns in a row."""
        return tuple(map(len, self.rows))

    def get_names(self, width: int) -> tuple[str, ...]:
        """The names in a row with one of `widths`."""
        return next(names for names in self.rows if len(names) == width)


class CsvLayouts:
    """The layouts of one decoder, cached."""

    def __init__(self, options: DmsCsvOptions) -> None:
        self._options = options
        self._known: dict[tuple[bytes | None, str], CsvLayout] = {}

    def get_layout(self, header: bytes | None, table: str) -> CsvLayout:
        """The layout of rows of `table` in a file with this header row, or None."""
        which = (header, table)
        if which not in self._known:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
            self._known[which] = self._read_layout(header, table)
        return self._known[which]

    def _read_layout(self, header: bytes | None, table: str) -> CsvLayout:
        types = self._options.columns_of(table) or {}
        declared = tuple(Column(name, find_type_reader(said).type) for name, said in types.items())
        if header is None:
            return self._declared_layout(declared)
        names = self._read_names(header)
        if isinstance(names, Reject):
            return CsvLayout(error=names)
        known = {column.name for column in declared}
        others = [name for name in names if name not in known and not self._is_bookkeeping(name)]
        columns = (*declared, *(Column(name, text_reader().type) for name in others))
        if declared and not others:
            return CsvLayout(DECLARED, declared, (names,))
        if not columns:
            return CsvLayout(error=malformed_reject("its header row names no column of a table"))
        written = msgspec.json.encode([column.name for column in columns])
        return CsvLayout(sha256(written).hexdigest()[:16], columns, (names,))

    def _declared_layout(self, declared: tuple[Column, ...]) -> CsvLayout:
        if not declared:
            return CsvLayout(error=UNDECLARED)
        names, first = tuple(column.name for column in declared), self._options.operation_column
        return CsvLayout(DECLARED, declared, (names,) if first in names else (names, (first, *names)))

    def _read_names(self, header: bytes) -> tuple[str, ...] | Reject:
        found, most = read_names(header, self._options.csv), self._options.limits.columns
        if isinstance(found, Reject):
            return Reject(found.code, f"its header row cannot be read: {found.sentence}")
        if len(found) > most:
            return Reject(RejectCode.TOO_LARGE, f"its header row has {len(found)} columns, more than the {most} allowed")
        names = tuple(name for name in found if name)
        if len(names) < len(found):
            return malformed_reject("its header row has a column without a name")
        return names if len(set(names)) == len(names) else malformed_reject("its header row names a column twice")

    def _is_bookkeeping(self, name: str) -> bool:
        return name == self._options.operation_column or name.startswith(RESERVED_PREFIXES)
