"""The Spark engine: frames stay on the executors, the driver sees counts, positions and schemas.

Arrival order is the physical order of a frame's rows: sources read each partition in offset order, and nothing before the
fold moves rows between Spark's partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import ERROR, MOVED_FROM, MOVED_TO, OFFSET, PARTITION, RAW, TOPIC, changes_schema
from replicator.domain.connectors import Connector
from replicator.domain.event_log import EVENT_LOG
from replicator.domain.key_hashes import PLAIN, KeyHashes
from replicator.domain.plan import ApplyPlan, Counts
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Mark, Part
from replicator.ports.decoder import Decoder, TellsTransactions
from replicator.ports.frames import Folded, Rejected, Routed, Run, Shaped

from ...arrow.log import log_rows
from ...arrow.moves import unsettled
from ...arrow.records import is_later, rejected
from ...arrow.shaping import shaped
from ...spark.errors import translating
from ...spark.frames import column, derived, from_arrow, kept, mapped, to_arrow, where
from ...spark.known import Known, all_at_or_above, all_below, counted, knowing, known_of, look, rows_of
from ...spark.parts import attend, attended, look_closely, marks_of, parts_of, with_parts
from ...spark.session import split
from ...spark.types import arrow_schema, spark_schema, struct_names
from .decoding import decoded
from .fold import fold
from .routing import routed
from .segments import segments

SAMPLE = 100
"""Records that are shown to a decoder so that it learns a schema, or finds the connector that wrote them."""
MOST_LOOKS = 5
"""Batches in which a connector is looked for, if none names it."""

PLACE = (TOPIC, PARTITION, OFFSET)
LATER = "_later"


class SparkEngine:
    """`ports.engine.Engine` over `pyspark.sql.DataFrame`; option `spark`: any Spark option. No state but its session, and
    in how many batches of a decoder it looked for the connector."""

    frame = DataFrame

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        _, self.spark = split(options or {})
        self._looks: WeakKeyDictionary[Decoder, int] = WeakKeyDictionary()

    @property
    def page(self) -> str | None:
        """Spark's own page."""
        address: str | None = self.spark.sparkContext.uiWebUrl
        return address

    @translating("routing a batch")
    def route(self, raw: DataFrame, decoder: Decoder) -> Routed[DataFrame]:
        """See `ports.engine.Engine.route`."""
        return routed(raw, decoder)

    def records(self, raw: pa.Table) -> DataFrame:
        """See `ports.engine.Engine.records`. In one piece, which keeps their order."""
        return kept(from_arrow(self.spark, raw).coalesce(1))

    def log(self, raw: DataFrame, decoder: Decoder) -> DataFrame:
        """See `ports.engine.Engine.log`."""
        now = datetime.now(UTC)
        schema = pa.schema([pa.field(c.name, c.type) for c in EVENT_LOG])
        return mapped(raw, lambda records: log_rows(records, decoder, now), schema)

    @translating("learning a schema")
    def learn(self, run: Run[DataFrame], decoder: Decoder) -> TableSpec:
        """See `ports.engine.Engine.learn`."""
        return decoder.learn(to_arrow(run.frame.limit(SAMPLE)).cast(RAW), run.table, run.fingerprint)

    @translating("decoding a batch")
    def decode(self, run: Run[DataFrame], decoder: Decoder, table: TableSpec) -> tuple[DataFrame, DataFrame]:
        """See `ports.engine.Engine.decode`. One job, which looks at everything that the driver is to know of the changes."""
        changes = mapped(run.frame, lambda raw: decoded(raw.cast(RAW), decoder, table), changes_schema(table))
        return _parted(changes, closely=attended(run.frame) is not None)

    def unite(self, parts: Sequence[DataFrame], table: TableSpec) -> DataFrame:
        """See `ports.engine.Engine.unite`."""
        return knowing(self.concat([_widened(part, table) for part in parts]), known_of(*parts))

    @translating("leaving out what was applied")
    def after(self, changes: DataFrame, position: Position) -> tuple[DataFrame, int]:
        """See `ports.engine.Engine.after`."""
        below, known = _any_of(position, lambda offset: column(OFFSET) < offset), known_of(changes)
        if known is not None and all_at_or_above(known, position):
            return changes, 0
        if known is not None and all_below(known, position.items()):
            return knowing(where(changes, ~below), Known()), known.rows
        return where(changes, ~below), changes.filter(below).count()

    def before(self, changes: DataFrame, position: Position) -> tuple[DataFrame, DataFrame]:
        """See `ports.engine.Engine.before`."""
        known = known_of(changes)
        if known is not None and not any(known.end.get(p, 0) > offset for p, offset in position.items()):
            return changes, knowing(changes.limit(0), Known())
        held = _any_of(position, lambda offset: column(OFFSET) >= offset)
        return where(changes, ~held), where(changes, held)

    @translating("looking for key changes")
    def unsettled(self, changes: DataFrame) -> Position:
        """See `ports.engine.Engine.unsettled`. The driver sees the keys of key changes."""
        known = known_of(changes)
        if MOVED_FROM not in changes.columns or (known is not None and not known.halves):
            return Position()
        keys = struct_names(changes.schema, MOVED_FROM)
        halves = changes.filter(column(MOVED_TO) | column(MOVED_FROM).isNotNull())
        return unsettled(to_arrow(halves.select([column(n) for n in (*PLACE, MOVED_FROM, MOVED_TO, *keys)])))

    @translating("looking for the ends of a batch")
    def ends(self, changes: DataFrame) -> Position:
        """See `ports.engine.Engine.ends`."""
        known = known_of(changes)
        if known is not None:
            return known.end
        last = changes.groupBy(TOPIC, PARTITION).agg(sf.max(OFFSET)).collect()
        return Position({TopicPartition(topic, partition): offset + 1 for topic, partition, offset in last})

    def within(self, raw: DataFrame, span: Span) -> DataFrame:
        """See `ports.engine.Engine.within`."""
        inside = sf.lit(False)
        for at, end in span.end.items():
            mine = (column("topic") == at.topic) & (column("partition") == at.partition)
            inside = inside | (mine & (column("offset") >= span.start[at]) & (column("offset") < end))
        return where(raw, inside)

    def held(
        self, raw: DataFrame, since: Mapping[tuple[str, int, str], int], error: str, hashes: KeyHashes = PLAIN
    ) -> tuple[DataFrame, DataFrame]:
        """See `ports.engine.Engine.held`. With a secret executors compare: a plan is read by who looks at it."""
        if hashes.secret and since:
            told = arrow_schema(raw.schema).append(pa.field(LATER, pa.bool_()))
            marked = kept(mapped(raw, lambda some: some.append_column(LATER, is_later(some, since, hashes)), told))
            free, bad = (where(marked, column(LATER) == sf.lit(later)).drop(LATER) for later in (False, True))
            return derived(free, marked, raw), derived(bad.withColumn(ERROR, sf.lit(error)), marked, raw)
        known = [sf.lit(part) for (t, p, key), offset in since.items() for part in (f"{t}-{p}-{key}", offset)]
        name = sf.concat_ws("-", column("topic"), column("partition"), sf.sha2(column("key"), 256))
        later = sf.coalesce(column("offset") >= sf.create_map(*known)[name], sf.lit(False)) if known else sf.lit(False)
        bad = where(raw, later)
        return where(raw, ~later), derived(bad.withColumn(ERROR, sf.lit(error)), bad)

    @translating("reading rejected records")
    def rejected(self, rows: DataFrame, raw: Sequence[DataFrame]) -> Sequence[Rejected]:
        """See `ports.engine.Engine.rejected`. The driver sees the rejected records: the dead letters are small."""
        bare = "topic" in rows.columns and TOPIC not in rows.columns
        if bare:
            return rejected(to_arrow(rows), ())
        errors = to_arrow(rows.select([column(n) for n in (*PLACE, ERROR)]))
        offsets = pc.unique(errors[OFFSET]).to_pylist()
        near = [to_arrow(frame.filter(column("offset").isin(offsets))) for frame in raw] if offsets else []
        return rejected(errors, near)

    @translating("looking for cuts")
    def segments(self, changes: DataFrame, table: TableSpec) -> Sequence[DataFrame]:
        """See `ports.engine.Engine.segments`."""
        return segments(changes, table)

    @translating("shaping a batch")
    def shape(self, changes: DataFrame, plan: ApplyPlan) -> Shaped[DataFrame]:
        """See `ports.engine.Engine.shape`. One job, like decoding: what was known of the changes may have become another."""
        wanted, table = plan.shape, plan.table
        frame, rejects = _parted(mapped(changes, lambda some: shaped(some, wanted, table), changes_schema(table)))
        bad = rows_of(rejects)
        return Shaped(frame, rejects, Counts(filtered=rows_of(changes) - rows_of(frame) - bad, rejected=bad))

    @translating("folding a batch")
    def fold(self, changes: DataFrame, plan: ApplyPlan) -> Folded[DataFrame]:
        """See `ports.engine.Engine.fold`."""
        return fold(changes, plan)

    @translating("reading marks of transactions")
    def marks(self, raw: DataFrame, topic: str, decoder: Decoder) -> Sequence[Mark]:
        """See `ports.engine.SeesTransactions.marks`. Without a job where the frame was attended, and routed since."""
        found = marks_of(raw)
        if found is None and isinstance(decoder, TellsTransactions):
            found = decoder.marks(to_arrow(where(raw, column("topic") == topic)).cast(RAW))
        return found or ()

    @translating("looking for the connector")
    def connector(self, raw: DataFrame, decoder: Decoder) -> Connector | None:
        """See `ports.engine.SeesTransactions.connector`. Looking is a job of its own, so it ends with the first answer."""
        if not isinstance(decoder, TellsTransactions) or (looks := self._looks.get(decoder, 0)) >= MOST_LOOKS:
            return None
        order = ("timestamp", "offset")
        newest = to_arrow(raw.orderBy(*(column(name).desc() for name in order)).limit(SAMPLE)).cast(RAW)
        found = decoder.connector(newest.sort_by([(name, "ascending") for name in order]))
        self._looks[decoder] = looks + 1 if found is None else MOST_LOOKS
        return found

    def parts(self, changes: DataFrame, table: str) -> Sequence[Part]:
        """See `ports.engine.SeesTransactions.parts`."""
        return self.exact_parts(changes, table)

    def attend(self, raw: DataFrame, topic: str) -> None:
        """See `ports.engine.SeesTransactions.attend`. Routing and decoding find out more, in the jobs that they are."""
        attend(raw, topic)

    @translating("counting changes of transactions")
    def exact_parts(self, changes: DataFrame, table: str) -> Sequence[Part]:
        """See `ports.engine.SeesTransactions.exact_parts`. Without a job where the records were attended."""
        return [replace(part, table=table) for part in parts_of(changes)]

    @translating("counting rows")
    def count(self, changes: DataFrame) -> int:
        """See `ports.engine.Engine.count`."""
        return rows_of(changes)

    def concat(self, frames: Sequence[DataFrame]) -> DataFrame:
        """See `ports.engine.Engine.concat`."""
        return knowing(derived(reduce(DataFrame.unionAll, frames), *frames), known_of(*frames))


def _parted(changes: DataFrame, *, closely: bool = False) -> tuple[DataFrame, DataFrame]:
    """The changes, with all that the driver is to know of them, and those with an error. `closely`: also their parts of
    transactions."""
    changes, fine = kept(changes), column(ERROR).isNull()
    seen = look_closely(changes, fine) if closely else {is_fine: (k, ()) for (is_fine,), k in look(changes, fine).items()}
    (good, parts), (bad, of_bad) = seen.get(True, (Known(), ())), seen.get(False, (Known(), ()))
    frame = knowing(where(changes, fine) if bad.rows else changes, good)
    rejects = counted(where(changes, ~fine), bad.rows)
    return (with_parts(frame, parts), with_parts(rejects, of_bad)) if closely else (frame, rejects)


def _widened(part: DataFrame, table: TableSpec) -> DataFrame:
    """`part` with the columns and types of `table`, the old key's included; columns the part lacks are null."""
    columns = []
    for field in spark_schema(changes_schema(table)):
        known = column(field.name) if field.name in part.columns else sf.lit(None)
        columns.append(known.cast(field.dataType).alias(field.name, metadata=field.metadata))
    return derived(part.select(columns), part)


def _any_of(position: Position, hit: Any) -> Column:
    """True for changes whose partition is in `position` and whose offset is hit there."""
    out = sf.lit(False)
    for at, offset in position.items():
        out = out | ((column(TOPIC) == at.topic) & (column(PARTITION) == at.partition) & hit(offset))
    return out
