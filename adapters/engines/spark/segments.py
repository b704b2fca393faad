"""Changes cut where the values that were not sent could not be told otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import OP, UNSENT, Op
from replicator.domain.table import TableSpec

from ...arrow.moves import DOUBTFUL, looked_at, places_of_cuts
from ...spark.departures import is_doubtful
from ...spark.frames import column, derived, kept, to_arrow
from ...spark.known import known_of

PLACE = "_place"


def segments(changes: DataFrame, table: TableSpec) -> Sequence[DataFrame]:
    """See `ports.engine.Engine.segments`. Only where some change lacks values the driver sees keys and operations."""
    known = known_of(changes)
    if table.soft_deletes:
        if not changes.filter(_asks(table)).limit(1).count():
            return [changes]
        return _cut(changes, table)
    if not table.keys or table.by_column or (known is not None and not known.partial):
        return [changes]
    if known is None and not changes.filter(column(UNSENT).isNotNull()).limit(1).count():
        return [changes]
    return _cut(changes, table)


def _asks(table: TableSpec) -> Column:
    """Where deletes leave rows: the changes for which there may be cuts."""
    op, lacks = column(OP), column(UNSENT).isNotNull()
    is_delete = op == Op.DELETE.value
    asks = (op == Op.TRUNCATE.value) | (is_delete if table.ordered_by else sf.lit(False)) | (lacks & ~is_delete)
    return asks | _doubtful(table)


def _doubtful(table: TableSpec) -> Column:
    return is_doubtful([c.name for c in table.values]) if table.by_commit else sf.lit(False)


def _cut(changes: DataFrame, table: TableSpec) -> Sequence[DataFrame]:
    placed = kept(derived(changes.withColumn(PLACE, sf.monotonically_increasing_id()), changes))
    looked = [column(n) for n in (*looked_at(table), PLACE)]
    seen = to_arrow(placed.select([*looked, _doubtful(table).alias(DOUBTFUL)]))
    places = [seen[PLACE][i].as_py() for i in places_of_cuts(seen, table)]
    bounds = list(zip([None, *places], [*places, None], strict=True))
    return [changes] if not places else [_between(placed, start, end) for start, end in bounds]


def _between(placed: DataFrame, start: int | None, end: int | None) -> DataFrame:
    piece = placed
    if start is not None:
        piece = piece.filter(column(PLACE) >= start)
    if end is not None:
        piece = piece.filter(column(PLACE) < end)
    return derived(piece.drop(PLACE), placed)
