"""The journal of a query: its rows, and the position in the cursor column, in the same commits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.errors import DataLoss

from ...delta.errors import translate_errors
from ...delta.folders import sync_commit, write_json
from ...delta.lake import local_folder
from ...delta.tables import has_table
from ...delta.types import storage_type
from ..journal.options import CHANGE, VERSION
from ..snapshot_diff.journal import KEPT_FOR_GOOD, restart_step, unwritable_error
from ..snapshot_diff.snapshots import ReadSnapshot, align_rows
from .options import QueryOptions

OF_COMMIT = "replicator.query"
TOLD_BY = "asked.json"
MASKS = "masks"
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


class QueryJournal:
    """The rows that were read, with the progress in each commit. The caller ensures that only one process writes."""

    def __init__(self, options: QueryOptions) -> None:
        self._options = options
        self._state, self._path = Path(options.state), options.journal
        self._anew = restart_step(self._state)
        self._privacy = options.row_masker()
        self._schema: pa.Schema | None = None

    @property
    def has_rows(self) -> bool:
        """True if rows were ever read."""
        return has_table(local_folder(str(self._path)))

    def check_rules(self) -> None:
        """Raise DataLoss if stored rows were read with another cursor column, other keys or other masks than configured:
        reading could not continue from them."""
        now, was = self._current_rules(), self._read_note()
        others = [name for name in now if was is not None and was[name] != now[name]]
        if others:
            raise DataLoss(
                f"{self._options.name} was read with another {' and '.join(others)} than the configuration has now.",
                next_step=f"{self._anew} Or restore the earlier setting.",
            )
        masks = was[MASKS] if was is not None else {}
        if self.has_rows and masks != self._privacy.mask_notes:
            self._privacy.refuse_others(masks, self._read_schema().names, self._anew)

    def begin(self, schema: pa.Schema) -> None:
        """Create the journal for rows with these columns. If it exists, raise DataLoss for missing columns and other
        types."""
        if not self.has_rows:
            if (self._read_note() or {}).get("made"):
                raise DataLoss(
                    f"{self._path} does not exist any more, so the rows that were read are lost.", next_step=self._anew
                )
            self._create(schema)
        if self._schema is None:
            own = (CHANGE, VERSION)
            self._schema = pa.schema(
                [pa.field(f.name, storage_type(f.type)) for f in self._read_schema() if f.name not in own]
            )
            if (self._read_note() or {}).get(MASKS) != self._privacy.mask_notes:
                self._write_note(made=True)  # Masks of columns that are new may have been added.
        remedy = "Give it back to the table, or to the query"
        now = ReadSnapshot(self._options.name, 0, schema.empty_table(), remedy=remedy)
        align_rows(self._schema.empty_table(), now, str(self._state))

    def read_progress(self) -> QueryProgress:
        """The progress in the newest commit with one. Compaction of the journal also makes commits."""
        with translate_errors(self._options.name):
            for commit in DeltaTable(str(self._path)).history():
                if OF_COMMIT in commit:
                    return QueryProgress.from_text(commit[OF_COMMIT])
        raise DataLoss(f"No commit of {self._path} has the position of the query.", next_step=self._anew)

    def append(self, rows: pa.Table, progress: QueryProgress) -> None:
        """Append rows as version `progress.version`, with the progress."""
        names = [CHANGE, VERSION, *rows.schema.names]
        count = rows.num_rows
        told = [pa.repeat(pa.scalar(READ), count), pa.repeat(pa.scalar(progress.version, pa.int64()), count)]
        # As one chunk: delta-rs may write each chunk to a file of its own.
        whole = pa.table([*told, *rows.columns], names=names).combine_chunks()
        with translate_errors(self._options.name):
            said = CommitProperties(custom_metadata={OF_COMMIT: progress.to_text()})
            write_deltalake(str(self._path), whole, mode="append", schema_mode="merge", commit_properties=said)
            sync_commit(self._path, DeltaTable(str(self._path)).version())
        self._schema = rows.schema

    def read_rows(self, condition: pc.Expression | None = None) -> Iterator[tuple[pa.Table, pa.Array]]:
        """The rows that match the condition with their versions, in small tables."""
        with translate_errors(self._options.name):
            found = DeltaTable(str(self._path)).to_pyarrow_dataset().scanner(filter=condition, batch_size=32_768)
            for batch in found.to_batches():
                if batch.num_rows:
                    yield pa.table(batch).drop_columns([CHANGE, VERSION]), batch.column(VERSION)

    def _create(self, schema: pa.Schema) -> None:
        try:
            self._write_note(made=False)
            names = pa.schema([pa.field(CHANGE, pa.string()), pa.field(VERSION, pa.int64()), *schema])
            said = CommitProperties(custom_metadata={OF_COMMIT: QueryProgress().to_text()})
            with translate_errors(self._options.name):
                write_deltalake(
                    str(self._path),
                    names.empty_table(),
                    name=self._options.name,
                    configuration=KEPT_FOR_GOOD,
                    commit_properties=said,
                )
            sync_commit(self._path, 0)
            self._write_note(made=True)
        except OSError as error:
            raise unwritable_error(self._state, error) from error

    def _write_note(self, *, made: bool) -> None:
        try:
            write_json(self._state / TOLD_BY, {**self._current_rules(), MASKS: self._privacy.mask_notes, "made": made})
        except OSError as error:
            raise unwritable_error(self._state, error) from error

    def _read_schema(self) -> pa.Schema:
        with translate_errors(self._options.name):
            return pa.schema(DeltaTable(str(self._path)).schema().to_arrow())

    def _read_note(self) -> Mapping[str, Any] | None:
        """The stored rules, with all names of `_current_rules`; None if there are none."""
        file = self._state / TOLD_BY
        if not file.exists():
            return None
        try:
            was = dict(json.loads(file.read_bytes()))
            return {
                **{name: was[name] for name in self._current_rules()},
                MASKS: dict(was.get(MASKS, {})),
                "made": was.get("made"),
            }
        except (ValueError, KeyError, TypeError) as damage:
            raise DataLoss(f"{file} is damaged.", next_step=self._anew) from damage

    def _current_rules(self) -> Mapping[str, Any]:
        return {"cursor_column": self._options.cursor_column, "keys": sorted(self._options.keys)}
