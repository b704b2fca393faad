"""Splitting of records by table and schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from replicator.domain.change import ERROR, RAW, RAW_RECORD_POSITION, TABLE
from replicator.domain.transactions import TransactionMark
from replicator.ports.decoder import ROUTE, TABLE_DROPPED, Decoder
from replicator.ports.frames import RecordSlice, RoutedBatch

from ...arrow.record_positions import DROPS, find_drops, group_by_table
from ...spark.frame_facts import set_row_count
from ...spark.frames import cache_frame, column, filter_rows, keep_parents, map_frame, to_arrow
from ...spark.transactions import get_topic, set_markers, set_topic

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
    seen, marks = _count_kinds(raw, decoder)
    if get_topic(raw) is not None:
        set_markers(raw, marks)
    routed = None if _is_routed_by_topic(seen) else _add_routes(raw, decoder)
    kinds: Counter[str] = Counter()
    for kind, records in seen.items():
        kinds.update({kind.ignored: records} if kind.ignored else {})
    names = sorted({kind.table for kind in seen if kind.table and not kind.bad})
    runs = [_watch_transactions(run, get_topic(raw)) for name in names for run in _split_runs(raw, routed, name, seen)]
    topics = {name: frozenset(kind.topic for kind in seen if kind.table == name and not kind.bad) for name in names}
    rejected = sum(records for kind, records in seen.items() if kind.bad)
    drops = group_by_table(_read_drops(raw, decoder)) if TABLE_DROPPED in kinds else {}
    return RoutedBatch(tuple(runs), dict(kinds), _select_rejects(raw, routed), rejected, topics, drops)


def _watch_transactions(run: RecordSlice[DataFrame], topic: str | None) -> RecordSlice[DataFrame]:
    """Have the transactions of the decoded changes counted, if a topic of transaction marks is set."""
    if topic is not None:
        set_topic(run.frame, topic)
    return run


def _count_kinds(raw: DataFrame, decoder: Decoder) -> tuple[Mapping[RouteKind, int], Sequence[TransactionMark]]:
    """The number of records of each kind, and the transaction marks of the topic that is set."""
    found: Counter[RouteKind] = Counter()
    marks: list[TransactionMark] = []
    topic = get_topic(raw)
    for *kind, records, marks_json in map_frame(
        raw, lambda some: _find_kinds(some.cast(RAW), decoder, topic), KINDS_AND_MARKS
    ).collect():
        if marks_json is None:
            found[RouteKind(*kind)] += records
        else:
            marks += _decode_marks(marks_json)
    return found, sorted(marks, key=lambda mark: (mark.partition, mark.offset))


def _find_kinds(records: pa.Table, decoder: Decoder, topic: str | None) -> pa.Table:
    """The kinds, and one more row with the transaction marks."""
    kinds = _list_kinds(records, decoder)
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


def _list_kinds(records: pa.Table, decoder: Decoder) -> pa.Table:
    routes = decoder.route(records)
    ways = [pc.is_valid(routes[name]) if name == "error" else routes[name] for name in ROUTE.names]
    routed = pa.table([records["topic"], pc.is_null(records["value"]), *ways], names=SEEN.names[:-1])
    grouped = routed.group_by(SEEN.names[:-1]).aggregate([([], "count_all")])
    return grouped.rename_columns(SEEN.names)


def _is_routed_by_topic(seen: Iterable[RouteKind]) -> bool:
    """True if topic and null value determine the route of every record."""
    ways = Counter((kind.topic, kind.bare) for kind in seen)
    return not any(kind.bad for kind in seen) and max(ways.values(), default=1) == 1


def _add_routes(raw: DataFrame, decoder: Decoder) -> DataFrame:
    schema = pa.schema([*RAW, *(field.with_name(ROUTED[field.name]) for field in ROUTE)])
    return cache_frame(map_frame(raw, lambda records: _route_batch(records.cast(RAW), decoder), schema))


def _route_batch(records: pa.Table, decoder: Decoder) -> pa.Table:
    routes = decoder.route(records)
    for name in ROUTE.names:
        records = records.append_column(ROUTED[name], routes[name])
    return records


def _read_drops(raw: DataFrame, decoder: Decoder) -> pa.Table:
    def of(some: pa.Table) -> pa.Table:
        records = some.cast(RAW)
        return find_drops(records, decoder.route(records), decoder)

    return to_arrow(map_frame(raw, of, DROPS)).cast(DROPS).sort_by([(name, "ascending") for name in RAW_RECORD_POSITION])


def _select_rejects(raw: DataFrame, routed: DataFrame | None) -> DataFrame:
    if routed is None:
        nothing = sf.lit(None).cast("string")
        return set_row_count(raw.limit(0).withColumns({ERROR: nothing, TABLE: nothing}), 0)
    error = column(ROUTED["error"])
    bad = routed.filter(error.isNotNull()).withColumns({ERROR: error, TABLE: column(ROUTED["table"])})
    return keep_parents(bad.drop(*ROUTED.values()), routed)


def _split_runs(
    raw: DataFrame, routed: DataFrame | None, table: str, seen: Mapping[RouteKind, int]
) -> Iterator[RecordSlice[DataFrame]]:
    """Slices with one fingerprint each. With several fingerprints they are cut in each partition separately."""
    mine = [kind for kind in seen if kind.table == table and not kind.bad]
    fingerprints = {kind.fingerprint or "" for kind in mine}
    is_mine = (column(ROUTED["table"]) == table) & column(ROUTED["fingerprint"]).isNotNull()
    records = sum(seen[kind] for kind in mine)
    if len(fingerprints) == 1:
        frame = filter_rows(raw, _matches_kinds(mine)) if routed is None else _select_bare(filter_rows(routed, is_mine))
        everything = routed is None and len(mine) == len(seen)
        yield RecordSlice(table, fingerprints.pop(), set_row_count(raw if everything else frame, records))
        return
    together = filter_rows(_add_known_routes(raw, mine) if routed is None else routed, is_mine)
    starts = _find_starts(together)
    ends: Sequence[Row | None] = [*starts[1:], None]
    for start, end in zip(starts, ends, strict=True):
        yield RecordSlice(table, start[ROUTED["fingerprint"]], _select_bare(filter_rows(together, _is_between(start, end))))


def _add_known_routes(raw: DataFrame, kinds: Iterable[RouteKind]) -> DataFrame:
    """Add table and fingerprint to each record, by its topic."""
    table = fingerprint = sf.lit(None).cast("string")
    for kind in kinds:
        table = sf.when(_matches_kinds([kind]), sf.lit(kind.table)).otherwise(table)
        fingerprint = sf.when(_matches_kinds([kind]), sf.lit(kind.fingerprint)).otherwise(fingerprint)
    return keep_parents(raw.withColumns({ROUTED["table"]: table, ROUTED["fingerprint"]: fingerprint}), raw)


def _matches_kinds(kinds: Iterable[RouteKind]) -> Column:
    """True for records of one of these kinds, by their topic and null value."""
    out = sf.lit(False)
    for kind in kinds:
        out = out | ((column("topic") == kind.topic) & (column("value").isNull() == sf.lit(kind.bare)))
    return out


def _find_starts(mine: DataFrame) -> list[Row]:
    """The first record of each run with one fingerprint, in order of position."""
    fingerprint = column(ROUTED["fingerprint"])
    before = sf.lag(fingerprint).over(Window.partitionBy("topic", "partition").orderBy("offset"))
    fresh = mine.select(*RAW_RECORD_POSITION, fingerprint, before.alias("_before"))
    fresh = fresh.filter(column("_before").isNull() | (column("_before") != fingerprint))
    return fresh.orderBy(*RAW_RECORD_POSITION).collect()


def _is_between(start: Row, end: Row | None) -> Column:
    same = (column("topic") == start["topic"]) & (column("partition") == start["partition"])
    inside: Column = same & (column("offset") >= start["offset"])
    if end is not None and (end["topic"], end["partition"]) == (start["topic"], start["partition"]):
        inside = inside & (column("offset") < end["offset"])
    return inside


def _select_bare(frame: DataFrame) -> DataFrame:
    return keep_parents(frame.select([column(n) for n in RAW.names]), frame)
