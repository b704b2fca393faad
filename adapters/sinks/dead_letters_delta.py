"""Rejected records as a Delta table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from replicator.domain.errors import ConfigProblem, Retryable
from replicator.domain.table import Column
from replicator.ports.dead_letters import DeadLetter

from ..delta.commits import WRITER
from ..delta.durable import sync_commit
from ..delta.errors import translating
from ..delta.layout import local_folder
from ..delta.options import LakeOptions
from ..delta.tables import STATISTICS, create, exists, schema_of
from ..delta.upkeep import Upkeep

MOMENT = pa.timestamp("us", "UTC")
COLUMNS = (
    *(Column(name, pa.string()) for name in ("event_id", "lane", "stage", "code", "sentence", "table", "key_hash")),
    Column("record", pa.binary()),
    Column("first_seen", MOMENT),
    Column("last_seen", MOMENT),
    Column("attempts", pa.int64()),
    Column("state", pa.string()),
)
SCHEMA = pa.schema([(c.name, c.type) for c in COLUMNS])
NAME = "dead_letters"
SAME = 't."event_id" = s."event_id" AND t."lane" = s."lane"'
SEEN_AGAIN = {
    **{f'"{name}"': f's."{name}"' for name in ("stage", "code", "sentence", "table", "key_hash", "record", "state")},
    '"last_seen"': 'greatest(t."last_seen", s."last_seen")',
    '"attempts"': 't."attempts" + s."attempts"',
}
FIRST_SEEN = {f'"{c.name}"': f's."{c.name}"' for c in COLUMNS}
ATTEMPTS = 20


class DeltaDeadLetters:
    """`ports.dead_letters.DeadLetters`; options `path`, the table's folder, and `compact_every`. Several processes may write
    at once."""

    def __init__(self, options: Mapping[str, object]) -> None:
        said = LakeOptions.checked(options)
        self._path = local_folder(said.path)
        self._upkeep = Upkeep(said.compact_every)
        self._table: DeltaTable | None = None

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """See `ports.dead_letters.DeadLetters.write`. On the disk, not only in the system's memory, when it returns."""
        if not letters:
            return
        rows = _rows(letters)
        with translating(NAME):
            for _ in range(ATTEMPTS):
                table = self._current()
                try:
                    _merge(table, rows)
                except CommitFailedError:
                    continue
                sync_commit(self._path, table.version())
                self._upkeep.after_commit(table, table.version())
                self._table = table
                return
        raise Retryable("other writers keep committing to the dead letters")

    def read(self, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """See `ports.dead_letters.DeadLetters.read`. Empty when nothing was ever written."""
        with translating(NAME):
            if not exists(self._path):
                return []
            rows = pa.RecordBatchReader.from_stream(DeltaTable(str(self._path)).scan(columns=SCHEMA.names)).read_all()
        newest = rows.cast(SCHEMA).sort_by([("last_seen", "descending"), ("event_id", "ascending"), ("lane", "ascending")])
        return [DeadLetter(**row) for row in newest.slice(0, limit).to_pylist()]

    def close(self) -> None:
        """See `ports.dead_letters.DeadLetters.close`; nothing is held."""
        self._table = None

    def _current(self) -> DeltaTable:
        """The snapshot of the last write, or the newest one. Given away: after a failure it is void."""
        table, self._table = self._table, None
        if table is not None:
            return table
        if not exists(self._path):
            create(self._path, NAME, COLUMNS, settings={STATISTICS: "event_id,last_seen"}, partition_by=[])
        return self._checked(DeltaTable(str(self._path)))

    def _checked(self, table: DeltaTable) -> DeltaTable:
        if not set(SCHEMA.names) <= set(schema_of(table).names):
            raise ConfigProblem(
                f"the folder of the dead letters, {self._path}, holds another table",
                next_step="Name a folder of their own under `dead_letters`.",
            )
        return table


def _merge(table: DeltaTable, rows: pa.Table) -> None:
    merger = table.merge(
        rows.cast(schema_of(table)),
        SAME,
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        writer_properties=WRITER,
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    merger.when_matched_update(SEEN_AGAIN).when_not_matched_insert(FIRST_SEEN).execute()


def _rows(letters: Sequence[DeadLetter]) -> pa.Table:
    """One row per (event_id, lane): a letter written twice at once is one that was seen twice."""
    distinct: dict[tuple[str, str], DeadLetter] = {}
    for letter in letters:
        known = distinct.get((letter.event_id, letter.lane))
        if known is not None:
            attempts = known.attempts + letter.attempts
            letter = replace(letter, first_seen=known.first_seen, attempts=attempts)  # noqa: PLW2901
        distinct[letter.event_id, letter.lane] = letter
    return pa.Table.from_pylist([asdict(letter) for letter in distinct.values()], SCHEMA)
