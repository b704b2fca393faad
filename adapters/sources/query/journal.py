"""The journal of a query: its rows, and the position in the cursor column, in the same commits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from replicator.domain.errors import DataLoss

from ...delta.types import storage_type
from ..journal.journal import MASKS, RowJournal
from ..journal.options import CHANGE, VERSION
from ..snapshot_diff.snapshots import ReadSnapshot, align_rows
from .options import QuerySettings

RULES = "asked.json"
READ = "r"
"""The operation of all rows: a query does not show if a row is new or changed."""


@dataclass(frozen=True)
class CursorRange:
    """A range of cursor values that is read separately at first, as text: from `lower` up to, but not including, `upper`.
    `border`: the last value that was read; `done`: it was read completely."""

    lower: str | None
    upper: str | None
    border: str | None = None
    done: bool = False


@dataclass(frozen=True)
class QueryProgress:
    """The position in the cursor column, as text, and the state of `parts` while the first rows are read. `version`: of
    the newest rows."""

    version: int = 0
    border: str | None = None
    parts: tuple[CursorRange, ...] = ()

    def to_text(self) -> str:
        """The text for `from_text`."""
        parts = [[p.lower, p.upper, p.border, p.done] for p in self.parts]
        return json.dumps({"version": self.version, "border": self.border, "parts": parts})

    @classmethod
    def from_text(cls, text: str) -> QueryProgress:
        """The progress of a text from `to_text`."""
        said = json.loads(text)
        return cls(said["version"], said["border"], tuple(CursorRange(*part) for part in said["parts"]))

    def with_part(self, number: int, part: CursorRange) -> QueryProgress:
        """The progress with another state of the part with that number."""
        return replace(self, parts=tuple(part if i == number else p for i, p in enumerate(self.parts)))


class QueryJournal(RowJournal):
    """The rows that were read, with the progress in each commit."""

    def __init__(self, options: QuerySettings) -> None:
        super().__init__(options, "replicator.query", "has the position of the query")
        self._options = options
        self._schema: pa.Schema | None = None

    def check_rules(self) -> None:
        """Raise DataLoss if stored rows were read with another cursor column, other keys or other masks than configured:
        reading could not continue from them."""
        now, was = self._current_rules(), self._read_rules()
        others = [name for name in now if was is not None and was[name] != now[name]]
        if others:
            raise DataLoss(
                f"{self._options.name} was read with another {' and '.join(others)} than the configuration has now.",
                next_step=f"{self.state.restart_step} Or restore the earlier setting.",
            )
        if self.has_rows:
            self.refuse_other_masks(was[MASKS] if was is not None else {})

    def begin(self, schema: pa.Schema) -> None:
        """Create the journal for rows with these columns. If it exists, raise DataLoss for missing columns and other
        types."""
        if not self.has_rows:
            if (self._read_rules() or {}).get("made"):
                raise self.gone_error("the rows that were read")
            self._create(schema)
        if self._schema is None:
            own = (CHANGE, VERSION)
            self._schema = pa.schema(
                [pa.field(f.name, storage_type(f.type)) for f in self.read_schema() if f.name not in own]
            )
            if (self._read_rules() or {}).get(MASKS) != self.privacy.mask_notes:
                self._write_rules(made=True)  # Masks of columns that are new may have been added.
        remedy = "Give it back to the table, or to the query"
        now = ReadSnapshot(self._options.name, 0, schema.empty_table(), remedy=remedy)
        align_rows(self._schema.empty_table(), now, str(self.state.path))

    def read_progress(self) -> QueryProgress:
        """The progress in the newest commit with one."""
        return QueryProgress.from_text(self.read_newest_progress())

    def append(self, rows: pa.Table, progress: QueryProgress) -> None:
        """Append rows as version `progress.version`, with the progress."""
        names = [CHANGE, VERSION, *rows.schema.names]
        count = rows.num_rows
        told = [pa.repeat(pa.scalar(READ), count), pa.repeat(pa.scalar(progress.version, pa.int64()), count)]
        # As one chunk: delta-rs may write each chunk to a file of its own.
        self.commit(pa.table([*told, *rows.columns], names=names).combine_chunks(), progress.to_text())
        self._schema = rows.schema

    def _create(self, schema: pa.Schema) -> None:
        names = pa.schema([pa.field(CHANGE, pa.string()), pa.field(VERSION, pa.int64()), *schema])
        self._write_rules(made=False)
        self.commit(names.empty_table(), QueryProgress().to_text())
        self._write_rules(made=True)

    def _write_rules(self, *, made: bool) -> None:
        self.state.write(RULES, {**self._current_rules(), MASKS: self.privacy.mask_notes, "made": made})

    def _read_rules(self) -> Mapping[str, Any] | None:
        """The stored rules, with all names of `_current_rules`; None if there are none."""

        def parse(was: Mapping[str, Any]) -> Mapping[str, Any]:
            rules = {name: was[name] for name in self._current_rules()}
            return {**rules, MASKS: dict(was.get(MASKS, {})), "made": was.get("made")}

        return self.state.read(RULES, parse)

    def _current_rules(self) -> Mapping[str, Any]:
        return {"cursor_column": self._options.cursor_column, "keys": sorted(self._options.keys)}
