"""What a lane of a lake has, in the types that its records had, for targets that are no lakes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.change import OP
from replicator.domain.plan import EVENT_ID, ApplyPlan
from replicator.domain.policies import sequence_elements
from replicator.domain.position import Position
from replicator.domain.schema_versions import SchemaVersion
from replicator.domain.table import Column
from replicator.ports.frames import Lane
from replicator.ports.state_snapshots import Unfit

from ..sql.beside import BESIDE
from ..sql.conform import cast_column
from .column_names import stored_columns
from .layout import Lake
from .ledger import applied_only
from .schemas import remembered
from .seeding import origin_of
from .tables import exists, opened, schema_of
from .types import restored


class Origin:
    """The lane `lane` of the lake in the folder `path`, whose plan is `plan`."""

    def __init__(self, path: str, lane: Lane, plan: ApplyPlan) -> None:
        there = Lake.at(path)
        self._table, self.state = origin_of(there, lane)
        self._plan, self._beside = plan, there.tombstones(lane.into)
        self.versions: Sequence[SchemaVersion] = remembered(there.schemas(lane.into))

    def rows(self) -> Iterator[pa.Table]:
        """The rows of its table, with the columns of the plan's target. Unfit where these are not all that it has."""
        yield from _pieces(self._table, self._plan.target)

    def beside(self) -> Iterator[pa.Table]:
        """What is kept beside it, as `beside_columns`; without what an attempt that died has left. Of a key, or of a change,
        there may be several rows."""
        if exists(self._beside):
            table = opened(self._beside, self.state.beside)
            yield from _pieces(table, beside_columns(self._plan), self.state.position)


def beside_columns(plan: ApplyPlan) -> tuple[Column, ...]:
    """The columns of what is kept beside the target of a plan; none where nothing is."""
    keys = tuple(plan.table.column(name) for name in plan.table.keys)
    if plan.repair.ledger:
        return (*keys, *sequence_elements(plan.table))
    if plan.by_column:
        return (*keys, Column(BESIDE, pa.string()))
    return (Column(OP, pa.string()), *plan.target) if plan.history else ()


def _pieces(table: DeltaTable, columns: Sequence[Column], applied: Position | None = None) -> Iterator[pa.Table]:
    """The rows of a table as these columns; of `applied` records alone, where they name theirs."""
    kept = schema_of(table)
    names = [column.name for column in stored_columns(tuple(columns), kept.names)]
    if set(kept.names) - {EVENT_ID} != set(names) - {EVENT_ID}:
        wrong = sorted({*kept.names} ^ {*names})
        raise Unfit(f"has other columns than the schema it tells: {', '.join(wrong)}")
    for batch in pa.RecordBatchReader.from_stream(table.scan()):
        rows = pa.table(batch).cast(pa.schema([kept.field(name) for name in batch.schema.names]))
        if applied is not None and EVENT_ID in kept.names:
            rows = applied_only(rows, applied)
        found = zip(names, columns, strict=True)
        yield pa.table({column.name: _as_sent(rows[name], column) for name, column in found})


def _as_sent(column: pa.ChunkedArray, to: Column) -> pa.ChunkedArray:
    try:
        found, failing = cast_column(restored(column, to.type), to.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Unfit(f"keeps column {to.name!r} in a type from which there is no way back to {to.type}") from error
    if failing:
        raise Unfit(f"has a value in column {to.name!r} that is no {to.type}")
    return found
