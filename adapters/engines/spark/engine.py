"""The Spark engine: frames stay on the executors, the driver sees counts, positions and schemas.

The order of arrival is the physical order of a frame's rows. Sources read each partition in offset order, and no step
before the fold moves rows between Spark's partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sf

from replicator.domain.change import (
    ERROR,
    KEY_CHANGE_DELETE,
    OFFSET,
    OLD_KEY,
    OP,
    PARTITION,
    RAW,
    RAW_RECORD_POSITION,
    RECORD_POSITION,
    TABLE,
    TOPIC,
    UNCHANGED,
    Op,
    changes_schema,
)
from replicator.domain.erasures import UNKEYED_HASHES, KeyHashes
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.event_log import EVENT_LOG
from replicator.domain.policy.plan import ApplyPlan, Counts
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Connector, TransactionMark, TransactionPart
from replicator.ports.decoder import ROUTE, TABLE_DROPPED, Decoder
from replicator.ports.engine import EngineFeatures, Frames, TransactionTracking
from replicator.ports.frames import FoldedChanges, RecordSlice, RejectedRecord, RoutedBatch, TransformedChanges

from ...arrow.key_change import DOUBTFUL, find_open_key_changes, find_segment_starts, list_read_columns
from ...arrow.record_positions import DROPS, collect_rejected, find_drops, group_by_table, mask_later
from ...delta.types import mask_impossible
from ...event_log import build_rows
from ...spark.errors import translate_errors
from ...spark.frames import (
    FrameFacts,
    cache_frame,
    collect_facts,
    collect_transaction_facts,
    column,
    count_rows,
    filter_rows,
    from_arrow,
    get_facts,
    get_markers,
    get_parts,
    get_topic,
    is_inside,
    is_outside,
    keep_parents,
    map_frame,
    set_facts,
    set_markers,
    set_parts,
    set_row_count,
    set_topic,
    to_arrow,
)
from ...spark.key_change_deletes import is_doubtful
from ...spark.session import split_options
from ...spark.types import arrow_schema, spark_schema, struct_names
from ...transforms.row_transforms import transform_rows
from .fold import fold_changes

SAMPLE = 100
"""Records from which a decoder reads a schema, or finds the connector that wrote them."""
MOST_LOOKS = 5
"""Batches in which the connector is searched for, if no record names it."""

LATER = "_later"


class SparkEngine:
    """`ports.engine.Engine` over `pyspark.sql.DataFrame`. Option `spark`: any Spark options. Its only state is the
    session, and for each decoder the number of batches in which the connector was searched for."""

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        _, self.spark = split_options(options or {})
        self.frames: Frames[DataFrame] = SparkFrames(self.spark)
        self._page: str | None = self.spark.sparkContext.uiWebUrl
        self._looks: WeakKeyDictionary[Decoder, int] = WeakKeyDictionary()

    @property
    def features(self) -> EngineFeatures:
        return EngineFeatures(
            page=self._page,
            transactions=TransactionTracking(
                marks=self.marks,
                connector=self.connector,
                parts=self.exact_parts,
                attend=set_topic,  # Routing and decoding then collect these facts in their own jobs.
                exact_parts=self.exact_parts,
            ),
        )

    @translate_errors("routing a batch")
    def route(self, raw: DataFrame, decoder: Decoder) -> RoutedBatch[DataFrame]:
        return route_records(raw, decoder)

    def log(self, raw: DataFrame, decoder: Decoder) -> DataFrame:
        now = datetime.now(UTC)
        schema = pa.schema([pa.field(c.name, c.type) for c in EVENT_LOG])
        return map_frame(raw, lambda records: build_rows(records, decoder, now), schema)

    @translate_errors("decoding a batch")
    def decode(self, slice_: RecordSlice[DataFrame], decoder: Decoder, table: TableSpec) -> tuple[DataFrame, DataFrame]:
        """One job that also collects the facts that the driver needs."""
        changes = map_frame(slice_.frame, lambda raw: decode_records(raw.cast(RAW), decoder, table), changes_schema(table))
        return _split_errors(changes, closely=get_topic(slice_.frame) is not None)

    @translate_errors("shaping a batch")
    def transform_rows(self, changes: DataFrame, plan: ApplyPlan) -> TransformedChanges[DataFrame]:
        """One job, which also collects the facts again, because transforms may change them."""
        transforms, table = plan.row_transforms, plan.table
        frame, rejects = _split_errors(
            map_frame(changes, lambda rows: transform_rows(rows, transforms, table), changes_schema(table))
        )
        bad = count_rows(rejects)
        return TransformedChanges(
            frame, rejects, Counts(filtered=count_rows(changes) - count_rows(frame) - bad, rejected=bad)
        )

    @translate_errors("folding a batch")
    def fold(self, changes: DataFrame, plan: ApplyPlan) -> FoldedChanges[DataFrame]:
        return fold_changes(changes, plan)

    @translate_errors("reading marks of transactions")
    def marks(self, raw: DataFrame, topic: str, decoder: Decoder) -> Sequence[TransactionMark]:
        """Needs no job if `attend` was called for the frame and it was routed since."""
        markers, read_marks = get_markers(raw), decoder.features.read_marks
        if markers is None and read_marks is not None:
            markers = read_marks(to_arrow(filter_rows(raw, column("topic") == topic)).cast(RAW))
        return markers or ()

    @translate_errors("looking for the connector")
    def connector(self, raw: DataFrame, decoder: Decoder) -> Connector | None:
        """Runs a job of its own, so it stops after the first answer."""
        find_connector = decoder.features.find_connector
        if find_connector is None or (looks := self._looks.get(decoder, 0)) >= MOST_LOOKS:
            return None
        order = ("timestamp", "offset")
        newest = to_arrow(raw.orderBy(*(column(name).desc() for name in order)).limit(SAMPLE)).cast(RAW)
        connector = find_connector(newest.sort_by([(name, "ascending") for name in order]))
        self._looks[decoder] = looks + 1 if connector is None else MOST_LOOKS
        return connector

    @translate_errors("counting changes of transactions")
    def exact_parts(self, changes: DataFrame, table: str) -> Sequence[TransactionPart]:
        """Needs no job if `attend` was called for the records."""
        return [replace(part, table=table) for part in get_parts(changes)]


class SparkFrames:
    """`ports.engine.Frames` of `pyspark.sql.DataFrame`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def from_arrow(self, raw: pa.Table) -> DataFrame:
        """In one Spark partition, which keeps their order."""
        return cache_frame(from_arrow(self._spark, raw).coalesce(1))

    @translate_errors("learning a schema")
    def sample(self, raw: DataFrame) -> pa.Table:
        return to_arrow(raw.limit(SAMPLE)).cast(RAW)

    @translate_errors("counting rows")
    def count(self, frame: DataFrame) -> int:
        return count_rows(frame)

    @translate_errors("looking for the ends of a batch")
    def ends(self, changes: DataFrame) -> Position:
        facts = get_facts(changes)
        if facts is not None:
            return facts.end
        last = changes.groupBy(TOPIC, PARTITION).agg(sf.max(OFFSET)).collect()
        return Position({TopicPartition(topic, partition): offset + 1 for topic, partition, offset in last})

    def concat(self, frames: Sequence[DataFrame], table: TableSpec | None = None) -> DataFrame:
        parts = list(frames)
        if table is not None:
            # Frames under an older schema lack columns of the table, or have them in other types.
            fields = spark_schema(changes_schema(table))
            for number, frame in enumerate(frames):
                columns = []
                for field in fields:
                    expression = column(field.name) if field.name in frame.columns else sf.lit(None)
                    columns.append(expression.cast(field.dataType).alias(field.name, metadata=field.metadata))
                parts[number] = keep_parents(frame.select(columns), frame)
        return set_facts(keep_parents(reduce(DataFrame.unionAll, parts), *parts), get_facts(*frames))

    def split(self, frame: DataFrame, span: Span) -> tuple[DataFrame, DataFrame]:
        """The result has known facts if one of the two frames is empty, and the facts of `frame` are known."""
        facts = get_facts(frame)
        if not span.end or (facts is not None and is_outside(facts, span)):
            return _make_empty(frame), frame
        if facts is not None and is_inside(facts, span):
            return frame, _make_empty(frame)
        topic, partition, offset = map(column, RECORD_POSITION if TOPIC in frame.columns else RAW_RECORD_POSITION)
        inside = sf.lit(False)
        for at, end in span.end.items():
            in_partition = (topic == at.topic) & (partition == at.partition)
            inside = inside | (in_partition & (offset >= span.start[at]) & (offset < end))
        return filter_rows(frame, inside), filter_rows(frame, ~inside)

    def split_blocked(
        self, raw: DataFrame, since: Mapping[tuple[str, int, str], int], error: str, hashes: KeyHashes = UNKEYED_HASHES
    ) -> tuple[DataFrame, DataFrame]:
        """With a secret the executors compare the hashes, so that the secret does not appear in a query plan."""
        if hashes.secret and since:
            schema = arrow_schema(raw.schema).append(pa.field(LATER, pa.bool_()))
            marked = cache_frame(
                map_frame(raw, lambda records: records.append_column(LATER, mask_later(records, since, hashes)), schema)
            )
            free, bad = (filter_rows(marked, column(LATER) == sf.lit(later)).drop(LATER) for later in (False, True))
            return keep_parents(free, marked, raw), keep_parents(bad.withColumn(ERROR, sf.lit(error)), marked, raw)
        literals = [sf.lit(part) for (t, p, key), offset in since.items() for part in (f"{t}-{p}-{key}", offset)]
        name = sf.concat_ws("-", column("topic"), column("partition"), sf.sha2(column("key"), 256))
        later = sf.coalesce(column("offset") >= sf.create_map(*literals)[name], sf.lit(False)) if literals else sf.lit(False)
        bad = filter_rows(raw, later)
        return filter_rows(raw, ~later), keep_parents(bad.withColumn(ERROR, sf.lit(error)), bad)

    @translate_errors("looking for cuts")
    def segments(self, changes: DataFrame, table: TableSpec) -> Sequence[DataFrame]:
        return split_segments(changes, table)

    @translate_errors("looking for key changes")
    def find_open_key_changes(self, changes: DataFrame) -> Position:
        """The driver sees the keys of key changes."""
        facts = get_facts(changes)
        if OLD_KEY not in changes.columns or (facts is not None and not facts.halves):
            return Position()
        keys = struct_names(changes.schema, OLD_KEY)
        halves = changes.filter(column(KEY_CHANGE_DELETE) | column(OLD_KEY).isNotNull())
        return find_open_key_changes(
            to_arrow(halves.select([column(n) for n in (*RECORD_POSITION, OLD_KEY, KEY_CHANGE_DELETE, *keys)]))
        )

    @translate_errors("reading rejected records")
    def rejected(self, rows: DataFrame, raw: Sequence[DataFrame]) -> Sequence[RejectedRecord]:
        """The driver sees the rejected records, which are few."""
        bare = "topic" in rows.columns and TOPIC not in rows.columns
        if bare:
            return collect_rejected(to_arrow(rows), ())
        errors = to_arrow(rows.select([column(n) for n in (*RECORD_POSITION, ERROR)]))
        offsets = pc.unique(errors[OFFSET]).to_pylist()
        records = [to_arrow(frame.filter(column("offset").isin(offsets))) for frame in raw] if offsets else []
        return collect_rejected(errors, records)


def _make_empty(frame: DataFrame) -> DataFrame:
    return set_facts(frame.limit(0), FrameFacts())


def _split_errors(changes: DataFrame, *, closely: bool = False) -> tuple[DataFrame, DataFrame]:
    """The valid changes with the facts that the driver needs, and the changes with an error. `closely`: with their parts
    of transactions, too."""
    changes, fine = cache_frame(changes), column(ERROR).isNull()
    facts = (
        collect_transaction_facts(changes, fine)
        if closely
        else {is_fine: (k, ()) for (is_fine,), k in collect_facts(changes, fine).items()}
    )
    (good, parts), (bad, of_bad) = facts.get(True, (FrameFacts(), ())), facts.get(False, (FrameFacts(), ()))
    frame = set_facts(filter_rows(changes, fine) if bad.rows else changes, good)
    rejects = set_row_count(filter_rows(changes, ~fine), bad.rows)
    return (set_parts(frame, parts), set_parts(rejects, of_bad)) if closely else (frame, rejects)


# Decoding, on Spark's executors.


def decode_records(raw: pa.Table, decoder: Decoder, table: TableSpec) -> pa.Table:
    """The changes of some records. Rows with a value that Spark cannot hold are rejected."""
    changes = decoder.decode(raw, table)
    for name in table.column_names:
        mask = mask_impossible(changes[name])
        if mask is None:
            continue
        text = str(Reject(RejectCode.OUT_OF_RANGE, f"the value of column {name!r} is no time of day"))
        values = pc.if_else(mask, pa.scalar(None, changes[name].type), changes[name])
        errors = pc.coalesce(changes[ERROR], pc.if_else(mask, pa.scalar(text), pa.scalar(None, pa.string())))
        changes = changes.set_column(changes.column_names.index(name), name, values)
        changes = changes.set_column(changes.column_names.index(ERROR), ERROR, errors)
    return changes


# Changes split where unchanged values could not be found otherwise.

ROW_NUMBER = "_place"


def split_segments(changes: DataFrame, table: TableSpec) -> Sequence[DataFrame]:
    """See `ports.engine.Frames.segments`. The driver sees keys and operations only if some change lacks values."""
    facts = get_facts(changes)
    if table.soft_deletes:
        op, lacks = column(OP), column(UNCHANGED).isNotNull()
        is_delete = op == Op.DELETE.value
        asks = (op == Op.TRUNCATE.value) | (is_delete if table.ordered_by else sf.lit(False)) | (lacks & ~is_delete)
        if not changes.filter(asks | _doubtful_column(table)).limit(1).count():
            return [changes]
        return _cut_frame(changes, table)
    if not table.keys or table.has_column_versions or (facts is not None and not facts.partial):
        return [changes]
    if facts is None and not changes.filter(column(UNCHANGED).isNotNull()).limit(1).count():
        return [changes]
    return _cut_frame(changes, table)


def _doubtful_column(table: TableSpec) -> Column:
    return is_doubtful([c.name for c in table.values]) if table.by_commit else sf.lit(False)


def _cut_frame(changes: DataFrame, table: TableSpec) -> Sequence[DataFrame]:
    placed = cache_frame(keep_parents(changes.withColumn(ROW_NUMBER, sf.monotonically_increasing_id()), changes))
    looked = [column(n) for n in (*list_read_columns(table), ROW_NUMBER)]
    columns = to_arrow(placed.select([*looked, _doubtful_column(table).alias(DOUBTFUL)]))
    cuts = [columns[ROW_NUMBER][i].as_py() for i in find_segment_starts(columns, table)]
    if not cuts:
        return [changes]
    segments = []
    for start, end in zip([None, *cuts], [*cuts, None], strict=True):
        segment = placed
        if start is not None:
            segment = segment.filter(column(ROW_NUMBER) >= start)
        if end is not None:
            segment = segment.filter(column(ROW_NUMBER) < end)
        segments.append(keep_parents(segment.drop(ROW_NUMBER), placed))
    return segments


# Splitting of records by table and schema.


ROUTED = {name: f"_route_{name}" for name in ROUTE.names}
"""Columns with the route of a record."""
BAD = pa.field("bad", pa.bool_())
SEEN = pa.schema(
    [("topic", pa.string()), ("bare", pa.bool_()), *(f for f in ROUTE if f.name != "error"), BAD, ("records", pa.int64())]
)
KINDS_AND_MARKS = pa.schema([*SEEN, ("marks_json", pa.binary())])
"""`marks_json`: transaction marks as JSON, in rows of their own, in which all other columns are null."""


_encode_marks = msgspec.json.Encoder().encode
_decode_marks = msgspec.json.Decoder(list[TransactionMark]).decode


class RouteKind(NamedTuple):
    """Records of one topic with the same route. `bare`: records without a value. `bad`: rejected records."""

    topic: str
    bare: bool
    table: str | None
    fingerprint: str | None
    ignored: str | None
    bad: bool


def route_records(raw: DataFrame, decoder: Decoder) -> RoutedBatch[DataFrame]:
    """See `ports.engine.Engine.route`. One job returns to the driver how many records have which route.

    - If topic and null value determine the route of every record, no frame is cached.
    - Otherwise, and if records are rejected, a second pass adds the route to each record.
    - If tables were dropped, one more job returns where.
    """
    counts, marks = _count_kinds(raw, decoder)
    topic = get_topic(raw)
    if topic is not None:
        set_markers(raw, marks)
    ways = Counter((kind.topic, kind.bare) for kind in counts)
    is_routed_by_topic = not any(kind.bad for kind in counts) and max(ways.values(), default=1) == 1
    routed = None if is_routed_by_topic else _add_routes(raw, decoder)
    kinds: Counter[str] = Counter()
    for kind, records in counts.items():
        kinds.update({kind.ignored: records} if kind.ignored else {})
    names = sorted({kind.table for kind in counts if kind.table and not kind.bad})
    slices = [slice_ for name in names for slice_ in _split_by_schema(raw, routed, name, counts)]
    if topic is not None:
        for slice_ in slices:
            set_topic(slice_.frame, topic)
    topics = {name: frozenset(kind.topic for kind in counts if kind.table == name and not kind.bad) for name in names}
    rejected = sum(records for kind, records in counts.items() if kind.bad)
    drops = group_by_table(_read_drops(raw, decoder)) if TABLE_DROPPED in kinds else {}
    if routed is None:
        nothing = sf.lit(None).cast("string")
        rejects = set_row_count(raw.limit(0).withColumns({ERROR: nothing, TABLE: nothing}), 0)
    else:
        error = column(ROUTED["error"])
        bad = routed.filter(error.isNotNull()).withColumns({ERROR: error, TABLE: column(ROUTED["table"])})
        rejects = keep_parents(bad.drop(*ROUTED.values()), routed)
    return RoutedBatch(tuple(slices), dict(kinds), rejects, rejected, topics, drops)


def _count_kinds(raw: DataFrame, decoder: Decoder) -> tuple[Mapping[RouteKind, int], Sequence[TransactionMark]]:
    """The number of records of each kind, and the transaction marks of the topic that is set."""
    counts: Counter[RouteKind] = Counter()
    marks: list[TransactionMark] = []
    topic = get_topic(raw)
    for *kind, records, marks_json in map_frame(
        raw, lambda raw_rows: _find_kinds(raw_rows.cast(RAW), decoder, topic), KINDS_AND_MARKS
    ).collect():
        if marks_json is None:
            counts[RouteKind(*kind)] += records
        else:
            marks += _decode_marks(marks_json)
    return counts, sorted(marks, key=lambda mark: (mark.partition, mark.offset))


def _find_kinds(records: pa.Table, decoder: Decoder, topic: str | None) -> pa.Table:
    """The kinds, and one more row with the transaction marks."""
    routes = decoder.route(records)
    ways = [pc.is_valid(routes[name]) if name == "error" else routes[name] for name in ROUTE.names]
    routed = pa.table([records["topic"], pc.is_null(records["value"]), *ways], names=SEEN.names[:-1])
    kinds = routed.group_by(SEEN.names[:-1]).aggregate([([], "count_all")]).rename_columns(SEEN.names)
    kinds = kinds.append_column(KINDS_AND_MARKS.field("marks_json"), pa.nulls(kinds.num_rows, pa.binary()))
    read_marks = decoder.features.read_marks
    if topic is None or read_marks is None:
        return kinds
    marks = read_marks(records.filter(pc.equal(records["topic"], topic)))
    if not marks:
        return kinds
    nothing = dict.fromkeys(SEEN.names)
    marks_json = pa.Table.from_pylist([{**nothing, "marks_json": _encode_marks(marks)}], kinds.schema)
    return pa.concat_tables([kinds, marks_json])


def _add_routes(raw: DataFrame, decoder: Decoder) -> DataFrame:
    def add(raw_rows: pa.Table) -> pa.Table:
        records = raw_rows.cast(RAW)
        routes = decoder.route(records)
        for name in ROUTE.names:
            records = records.append_column(ROUTED[name], routes[name])
        return records

    schema = pa.schema([*RAW, *(field.with_name(ROUTED[field.name]) for field in ROUTE)])
    return cache_frame(map_frame(raw, add, schema))


def _read_drops(raw: DataFrame, decoder: Decoder) -> pa.Table:
    def of(raw_rows: pa.Table) -> pa.Table:
        records = raw_rows.cast(RAW)
        return find_drops(records, decoder.route(records), decoder)

    return to_arrow(map_frame(raw, of, DROPS)).cast(DROPS).sort_by([(name, "ascending") for name in RAW_RECORD_POSITION])


def _split_by_schema(
    raw: DataFrame, routed: DataFrame | None, table: str, counts: Mapping[RouteKind, int]
) -> Iterator[RecordSlice[DataFrame]]:
    """Slices with one fingerprint each. With several fingerprints they are cut in each partition separately."""
    kinds = [kind for kind in counts if kind.table == table and not kind.bad]
    fingerprints = {kind.fingerprint or "" for kind in kinds}
    is_mine = (column(ROUTED["table"]) == table) & column(ROUTED["fingerprint"]).isNotNull()
    records = sum(counts[kind] for kind in kinds)
    if len(fingerprints) == 1:
        frame = filter_rows(raw, _matches_kinds(kinds)) if routed is None else _select_bare(filter_rows(routed, is_mine))
        everything = routed is None and len(kinds) == len(counts)
        yield RecordSlice(table, fingerprints.pop(), set_row_count(raw if everything else frame, records))
        return
    if routed is None:  # The topic of each record says its table and fingerprint.
        known_table = known_fingerprint = sf.lit(None).cast("string")
        for kind in kinds:
            known_table = sf.when(_matches_kinds([kind]), sf.lit(kind.table)).otherwise(known_table)
            known_fingerprint = sf.when(_matches_kinds([kind]), sf.lit(kind.fingerprint)).otherwise(known_fingerprint)
        known_routes = {ROUTED["table"]: known_table, ROUTED["fingerprint"]: known_fingerprint}
        routed = keep_parents(raw.withColumns(known_routes), raw)
    together = filter_rows(routed, is_mine)
    fingerprint = column(ROUTED["fingerprint"])
    before = sf.lag(fingerprint).over(Window.partitionBy("topic", "partition").orderBy("offset"))
    fresh = together.select(*RAW_RECORD_POSITION, fingerprint, before.alias("_before"))
    fresh = fresh.filter(column("_before").isNull() | (column("_before") != fingerprint))
    starts = fresh.orderBy(*RAW_RECORD_POSITION).collect()
    ends: Sequence[Row | None] = [*starts[1:], None]
    for start, end in zip(starts, ends, strict=True):
        inside = (column("topic") == start["topic"]) & (column("partition") == start["partition"])
        inside = inside & (column("offset") >= start["offset"])
        if end is not None and (end["topic"], end["partition"]) == (start["topic"], start["partition"]):
            inside = inside & (column("offset") < end["offset"])
        yield RecordSlice(table, start[ROUTED["fingerprint"]], _select_bare(filter_rows(together, inside)))


def _matches_kinds(kinds: Iterable[RouteKind]) -> Column:
    """True for records of one of these kinds, by their topic and null value."""
    out = sf.lit(False)
    for kind in kinds:
        out = out | ((column("topic") == kind.topic) & (column("value").isNull() == sf.lit(kind.bare)))
    return out


def _select_bare(frame: DataFrame) -> DataFrame:
    return keep_parents(frame.select([column(n) for n in RAW.names]), frame)
