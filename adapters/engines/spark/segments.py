"""Changes split where unchanged values could not be found otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import OP, UNCHANGED, Op
from replicator.domain.table import TableSpec

from ...arrow.key_change import DOUBTFUL, find_cut_places, list_read_columns
from ...spark.frame_facts import get_facts
from ...spark.frames import cache_frame, column, keep_parents, to_arrow
from ...spark.key_change_deletes import is_doubtful

PLACE = "_place"


def split_segments(changes: DataFrame, table: TableSpec) -> Sequence[DataFrame]:
    """See `ports.engine.Engine.segments`. The driver sees keys and operations only if some change lacks values."""
    known = get_facts(changes)
    if table.soft_deletes:
        if not changes.filter(_needs_cuts(table)).limit(1).count():
            return [changes]
        return _cut_frame(changes, table)
    if not table.keys or table.has_column_versions or (known is not None and not known.partial):
        return [changes]
    if known is None and not changes.filter(column(UNCHANGED).isNotNull()).limit(1).count():
        return [changes]
    return _cut_frame(changes, table)


def _needs_cuts(table: TableSpec) -> Column:
    """With soft deletes: true for changes before which a cut may be needed."""
    op, lacks = column(OP), column(UNCHANGED).isNotNull()
    is_delete = op == Op.DELETE.value
    asks = (op == Op.TRUNCATE.value) | (is_delete if table.ordered_by else sf.lit(False)) | (lacks & ~is_delete)
    return asks | _doubtful_column(table)


def _doubtful_column(table: TableSpec) -> Column:
    return is_doubtful([c.name for c in table.values]) if table.by_commit else sf.lit(False)


def _cut_frame(changes: DataFrame, table: TableSpec) -> Sequence[DataFrame]:
    placed = cache_frame(keep_parents(changes.withColumn(PLACE, sf.monotonically_increasing_id()), changes))
    looked = [column(n) for n in (*list_read_columns(table), PLACE)]
    seen = to_arrow(placed.select([*looked, _doubtful_column(table).alias(DOUBTFUL)]))
    places = [seen[PLACE][i].as_py() for i in find_cut_places(seen, table)]
    bounds = list(zip([None, *places], [*places, None], strict=True))
    return [changes] if not places else [_select_between(placed, start, end) for start, end in bounds]


def _select_between(placed: DataFrame, start: int | None, end: int | None) -> DataFrame:
    piece = placed
    if start is not None:
        piece = piece.filter(column(PLACE) >= start)
    if end is not None:
        piece = piece.filter(column(PLACE) < end)
    return keep_parents(piece.drop(PLACE), placed)
