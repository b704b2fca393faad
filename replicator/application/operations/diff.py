"""Compares a table of a source with its targets, at one exact point, while both change.

A snapshot of the source has an exact point among the changes. Each lane passes this point, and its target is read at a
commit after it. The changes between the point and that commit are in the log. Their keys are compared apart from all others:

- These keys: the expected rows are those of the snapshot and then these changes, applied by the lane's own pipeline to a
  temporary lake.
- Other keys: the expected rows are those of the snapshot, as the lane's own pipeline transforms them. Checksums show which
  of them need not be read.

So no change in flight can look like a difference."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.application.lane_schema import list_identity_columns
from replicator.application.sink_features import get_reader, open_comparison
from replicator.domain.differences import (
    DifferenceKind,
    LaneDiff,
    RowDiff,
    RowDifference,
    are_comparable,
    compare_rows,
    to_key_texts,
    to_shown,
)
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal
from replicator.domain.expr import Expr
from replicator.domain.plain_values import format_count
from replicator.domain.policy import CHANGE_POLICIES, VERSION_POLICIES
from replicator.domain.policy.plan import CDC_APPLIED_AT, CDC_DELETED
from replicator.domain.position import Position
from replicator.domain.read_query import InvalidReadQuery
from replicator.domain.table import is_reserved
from replicator.domain.transform.columns import NO_COLUMN_RULE
from replicator.domain.transform.expressions import list_columns
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.reads import ComparableTable, ComparedColumn, KeyRange, SourceSnapshot, TableSplit, TargetSnapshot
from replicator.ports.runtime import ShowLine
from replicator.ports.source import Source
from replicator.ports.stores import DeadLetter, DeadLetterFilter

from .as_of import AsOf, PartitionMissing, read_rows_as_of, resolve_as_of
from .checkpoint import list_topics
from .diff_records import ChangeTail, DiffWait, TableRecords, build_rows, merge_keys
from .diff_runs import DiffProgressFile, UnfinishedDiff, hash_compared, open_work_folder

TRIES = 3
"""How often a comparison starts again after a truncate."""
SPLIT_ROWS, READ_ROWS = 5_000_000, 500_000
"""Rows of a split with checksums, and rows that are read at once."""
LEAST_ROWS, PAUSE_SECONDS = 1_000, 5
"""At a limited rate: the fewest rows of a split, and the seconds that one takes."""
REPORT_EVERY = 2.0
NO_KEYS = pa.table({})


@dataclass
class DiffTotals:
    """The running result of one lane."""

    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    differences: list[RowDifference] = field(default_factory=list)
    keys: list[pa.Table] = field(default_factory=list)

    def count_differences(self) -> int:
        """The number of rows that differ."""
        return self.missing + self.extra + self.different

    def add_rejected(self, letter: DeadLetter, key: Mapping[str, Any], *, is_present: bool, show: int) -> None:
        """Add a row whose last record the lane rejects. `is_present`: the target has an older row."""
        self.different += is_present
        self.missing += not is_present
        if len(self.differences) < show:
            kind: DifferenceKind = "different" if is_present else "missing"
            row_key = {name: to_shown(value) for name, value in key.items()}
            reason = f"The lane rejects this row ({letter.code}): {letter.sentence}"
            self.differences.append(RowDifference(kind, row_key, {}, reason))

    def add(self, diff: RowDiff, rows: int, show: int) -> None:
        """Add the comparison of some rows."""
        self.rows += rows
        self.missing += len(diff.missing)
        self.extra += len(diff.extra)
        self.different += len(diff.different)
        self.differences += diff.list_differences(max(0, show - len(self.differences)))
        self.keys.append(diff.read_keys())


@dataclass
class DiffOperation:
    """Compares a table with the targets of its lanes.

    - `source`: the stream of the table, in this process.
    - `patience`: seconds to wait until a lane has passed the point of the snapshot.
    - `show`: how many differences of a lane are described.
    - `rows_per_second`: the most rows to read from the source; None is no limit.
    - `where`: a condition on the source's columns, as in the config; only rows that match it are compared.
    - `from_scratch`: start over instead of resuming an interrupted comparison.
    """

    components: Components
    lanes: Sequence[Lane]
    comparison: ComparableTable
    source: Source[pa.Table]
    show_line: ShowLine
    patience: float = 120.0
    show: int = 10
    rows_per_second: int | None = None
    from_scratch: bool = False
    where: str = ""

    def run(self) -> Iterator[LaneDiff]:
        """Compare each lane. EnvironmentProblem if a running lane does not pass the point in time. Other
        errors as of `ports.reads.ComparableTable`."""
        for lane in self.lanes:
            refuse_uncomparable(lane)
            refuse_changed_columns(lane, self.condition)
        pending = list(self.lanes)
        for _ in range(TRIES):
            before = self.source.end()
            with self.comparison.open_snapshot(self.show_line) as snapshot:
                refuse_unknown_columns(snapshot, self.condition)
                again = []
                for lane in pending:
                    lane_diff = self._compare_lane(lane, before, snapshot)
                    if lane_diff is None:
                        again.append(lane)
                    else:
                        yield lane_diff
            pending = again
            if not pending:
                return
        raise Fatal(
            f"Table {pending[0].table} was truncated during each of {TRIES} comparisons.",
            next_step="Repeat the command when nothing truncates it.",
        )

    @property
    def condition(self) -> Expr | None:
        """`where`, parsed."""
        return self.components.parse_condition(self.where) if self.where else None

    def _compare_lane(self, lane: Lane, before: Position, snapshot: SourceSnapshot) -> LaneDiff | None:
        """The comparison; None if the table was truncated meanwhile."""
        begun, started = datetime.now(UTC), time.monotonic()
        records = TableRecords(self.components, lane)
        self.show_line(f"{lane.id}: waiting until it has passed {snapshot.point}")
        wait = DiffWait(self.components, self.source, self.patience, self.show_line)
        delivered = wait.await_delivery(snapshot)
        end = self.source.end()
        halt = wait.await_lane(lane, end, snapshot, records)
        with (
            closing(self.components.open_sink(lane.sink)) as sink,
            open_comparison(sink, lane) as target,
            open_work_folder(self.components.folder) as folder,
            DiffProgressFile(self.components.folder, lane) as progress,
        ):
            if target is None:
                return describe_empty(lane, snapshot, begun)
            rules = self.components.sources[lane.source].rules_for(lane.table)
            columns = DiffColumns(lane, snapshot, target, frozenset(rules.masks if rules is not None else ()))
            self.show_line(f"{lane.id}: comparing {target.commit}")
            compared = hash_compared(lane, target)
            earlier = None if self.from_scratch or self.where else progress.read()
            if earlier is None or earlier.compared != compared:
                earlier = UnfinishedDiff(before, None, 0, NO_KEYS, snapshot.point, begun, compared)
            if earlier.upto is not None:
                self.show_line(f"{lane.id}: resuming after {snapshot.keys[0]} {earlier.upto:,}")
            tail = records.read_tail(self.source, earlier.before, target.position.advanced_to(end), folder / "tail.parquet")
            # A lane that has not stopped has applied all changes up to `end`.
            unapplied = records.read_tail(self.source, target.position, end, folder / "unapplied.parquet")
            if tail.is_truncated or unapplied.is_truncated:
                progress.remove()
                if halt:
                    raise Fatal(
                        f"Lane {lane.id} has not applied a truncate of {lane.table}. {halt.sentence}",
                        next_step=halt.next_step,
                    )
                return None
            one = LaneComparison(self, lane, records, snapshot, target, columns, tail.with_keys(unapplied.keys), folder)
            totals = one.run(earlier, progress)
            progress.remove()
            if not delivered and totals.count_differences():
                raise build_unproven_error(lane, snapshot, totals)
            self._explain(lane, records, totals, unapplied.keys, halt)
            return LaneDiff(
                lane=lane.id,
                table=lane.table,
                against="source",
                position=(earlier.point, snapshot.point),
                commit=target.commit,
                rows=totals.rows,
                missing=totals.missing,
                extra=totals.extra,
                different=totals.different,
                differences=tuple(totals.differences),
                not_compared=tuple(columns.not_compared),
                begun=begun.isoformat(),
                seconds=round(time.monotonic() - started, 3),
                keys=one.list_keys(),
            )

    def _explain(
        self, lane: Lane, records: TableRecords, totals: DiffTotals, unapplied: pa.Table, halt: Fatal | None
    ) -> None:
        """Add the reasons that the pipeline knows. These are open dead letters, also of blocked keys, and a lane that has
        stopped. `unapplied`: the keys whose changes such a lane has not applied."""
        if not totals.differences:
            return
        rename = lane.row_transforms.column_transforms.get_new_name

        def to_target(key: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
            return tuple(sorted((rename(name), str(to_shown(value))) for name, value in key.items()))

        reasons: dict[tuple[tuple[str, str], ...], str] = {}
        if halt is not None:
            reasons = dict.fromkeys(map(to_target, unapplied.to_pylist()), str(halt))
        with closing(self.components.open_dead_letters()) as store:
            letters = store.read(DeadLetterFilter(state="open"))
        # A record that is rejected before it reaches the lanes has none, and may be one whose table nobody knows.
        own = [
            one
            for one in letters
            if one.lane in ("", lane.id) and one.table in ("", lane.table) and one.source in ("", lane.source)
        ]
        reasons |= {to_target(key): describe_letter(letter) for letter, key in records.read_keys(own)}
        for number, one in enumerate(totals.differences):
            reason = reasons.get(tuple(sorted((name, str(value)) for name, value in one.key.items())))
            if not one.reason and reason is not None:
                totals.differences[number] = replace(one, reason=reason)


def describe_empty(lane: Lane, snapshot: SourceSnapshot, begun: datetime) -> LaneDiff:
    """The comparison of a table without rows with a lane that has no target yet. Fatal if there are rows."""
    if any(frame.num_rows for frame in snapshot.read(TableSplit((), snapshot.keys, None, NO_KEYS), None)):
        raise Fatal(
            f"Lane {lane.id} has no target yet, but its table has rows.",
            next_step="Start the daemon. If it runs, `replicator dlq list` shows rejected records, and "
            f"`replicator backfill {lane.table}` loads rows that were never sent.",
        )
    points = snapshot.point, snapshot.point
    return LaneDiff(lane.id, lane.table, "source", points, "no target yet", 0, 0, 0, 0, (), (), begun.isoformat(), 0.0)


def describe_letter(letter: DeadLetter) -> str:
    """The reason of a difference that a rejected record explains."""
    return f"A record of this row was rejected ({letter.code}): `replicator dlq explain {letter.event_id}`."


@dataclass
class LaneComparison:
    """The comparison of one lane in one snapshot, with `folder` for temporary files."""

    operation: DiffOperation
    lane: Lane
    records: TableRecords
    source: SourceSnapshot
    target: TargetSnapshot
    columns: DiffColumns
    tail: ChangeTail
    folder: Path
    totals: DiffTotals = field(default_factory=DiffTotals)
    _reported: float = field(default_factory=time.monotonic)

    def run(self, unfinished: UnfinishedDiff, progress: DiffProgressFile) -> DiffTotals:
        """Compare the splits that are not yet compared, then the keys of the tail and those that differed before."""
        if self.columns.has_other_keys:
            whole = TableSplit((), self.source.keys, None, NO_KEYS, self.operation.condition)
            expected, rejected = self._build(self.source.read(whole, None), self.tail.frames)
            self._add(expected, self.target.read(self.columns.to_target(whole), None), rejected)
            return self.totals
        self.tail = self.tail.with_keys(unfinished.keys)
        self.totals.rows = unfinished.rows
        summed = None if self.operation.where else self.columns.list_summed()
        split_rows, limit = SPLIT_ROWS if summed is not None else READ_ROWS, self.operation.rows_per_second
        if limit is not None:  # Few rows at a limited rate, as there is a pause between two splits only.
            split_rows = min(split_rows, max(LEAST_ROWS, limit * PAUSE_SECONDS))
        ranges, total = self.source.list_ranges(split_rows)
        started = time.monotonic()
        for within in skip_ranges(ranges, self.source.keys[0], unfinished.upto):
            if limit is not None:
                due = (self.totals.rows - unfinished.rows) / limit
                time.sleep(max(0.0, due - (time.monotonic() - started)))
            split = TableSplit(summed or (), self.source.keys, within, self.tail.keys, self.operation.condition)
            groups: Iterable[list[int] | None] = [None]
            if summed is not None:
                equal, groups = self._find_unequal(split)
                self.totals.rows += equal
            for buckets in groups:
                expected, rejected = self._build(self.source.read(split, buckets))
                actual = self.target.read(self.columns.to_target(split), buckets)
                self._add(self._leave_out(expected), self._leave_out(actual), rejected)
            if within is not None and within.upto is not None and not self.operation.where:
                keys = merge_keys([unfinished.keys, self.list_keys()])
                progress.write(replace(unfinished, upto=within.upto, rows=self.totals.rows, keys=keys))
            self._report_progress(total, started)
        keys = self.tail.keys
        if keys.num_rows:  # The rows whose keys have changed since the snapshot.
            expected, rejected = self._build(self.source.read_keys(keys), self.tail.frames)
            renamed = keys.rename_columns(self.columns.rename(keys.column_names))
            self._add(expected, self.target.read_keys(renamed, self.operation.condition), rejected)
        return self.totals

    def list_keys(self) -> pa.Table:
        """The keys of all rows that differ, with the source's names."""
        if self.columns.has_other_keys:
            return NO_KEYS
        return merge_keys([keys.rename_columns(list(self.source.keys)) for keys in self.totals.keys])

    def _find_unequal(self, split: TableSplit) -> tuple[int, list[list[int]]]:
        """The number of rows in buckets with equal checksums, and the other buckets, in groups that fit into memory."""
        with ThreadPoolExecutor(1) as background:
            target_sums = background.submit(self.target.sum, self.columns.to_target(split))
            source_sums = self.source.sum(split)
            one, two = ({row["bucket"]: row for row in sums.to_pylist()} for sums in (source_sums, target_sums.result()))
        unequal = [bucket for bucket in sorted({*one, *two}) if one.get(bucket) != two.get(bucket)]
        groups: list[list[int]] = []
        size = READ_ROWS
        for bucket in unequal:
            rows = max(side[bucket]["rows"] for side in (one, two) if bucket in side)
            if size + rows > READ_ROWS:
                groups.append([])
                size = 0
            groups[-1].append(bucket)
            size += rows
        return sum(row["rows"] for row in one.values()) - sum(one[b]["rows"] for b in unequal if b in one), groups

    def _build(self, frames: Iterable[pa.Table], then: Iterable[pa.Table] = ()) -> tuple[pa.Table, Sequence[DeadLetter]]:
        folder = self.folder / "rows"
        try:
            return build_rows(self.operation.components, self.lane, folder, frames, then, where=self.operation.where)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _add(self, expected: pa.Table, actual: pa.Table, rejected: Sequence[DeadLetter]) -> None:
        """Compare rows, and add the result to the totals."""
        expected, actual = self.columns.share(expected, actual)
        keys, letters = self._find_rejected(rejected)
        refused = to_key_texts(keys.columns, len(keys))
        self.totals.rows += len(keys)
        present = set()
        if letters:
            texts = to_key_texts([actual[name] for name in self.columns.keys], len(actual))
            present = set(texts.to_pylist())
            actual = actual.filter(pc.invert(pc.is_in(texts, value_set=refused)))
            texts = to_key_texts([expected[name] for name in self.columns.keys], len(expected))
            expected = expected.filter(pc.invert(pc.is_in(texts, value_set=refused)))
        diff = compare_rows(expected, actual, self.columns.keys)
        if self.lane.row_transforms.without_deletes and diff.extra:
            self.columns.exclude("Extra rows are not compared: the lane keeps deleted rows (`deletes: ignore`).")
            diff = replace(diff, extra=())
        self.totals.add(diff, expected.num_rows, self.operation.show)
        for row, letter, text in zip(keys.to_pylist(), letters, refused.to_pylist(), strict=True):
            self.totals.add_rejected(letter, row, is_present=text in present, show=self.operation.show)
        self.totals.keys.append(keys.cast(expected.select(self.columns.keys).schema))

    def _find_rejected(self, letters: Sequence[DeadLetter]) -> tuple[pa.Table, Sequence[DeadLetter]]:
        """The keys of the rows whose last record was rejected, with the names of the target, and these records. A record
        without a key that can be read is one missing row."""
        pairs = list(self.records.read_keys(letters))
        located = {letter.record_position for letter, _ in pairs}
        for letter in letters:
            if letter.record_position not in located:
                self.totals.add_rejected(letter, {}, is_present=False, show=self.operation.show)
        keys = pa.table({name: [key[name] for _, key in pairs] for name in self.source.keys})
        chosen: dict[str, int] = {}
        for at, text in enumerate(to_key_texts(keys.columns, len(pairs)).to_pylist()):
            position = pairs[at][0].record_position
            if self.tail.last.get(text, position) == position:
                chosen[text] = at
        keys = keys.take(pa.array(list(chosen.values()), pa.int64())).rename_columns(self.columns.keys)
        converted = {name: self.target.convert(name, keys[name].combine_chunks()) for name in self.columns.keys}
        return pa.table(converted), [pairs[at][0] for at in chosen.values()]

    def _leave_out(self, rows: pa.Table) -> pa.Table:
        """The rows without the keys of the tail, which are compared last."""
        keys = self.tail.keys
        if not rows.num_rows or not keys.num_rows:
            return rows
        tail_keys = to_key_texts([keys[name].combine_chunks() for name in self.source.keys], keys.num_rows)
        key_texts = to_key_texts([rows[name].combine_chunks() for name in self.columns.keys], rows.num_rows)
        return rows.filter(pc.invert(pc.is_in(key_texts, value_set=tail_keys)))

    def _report_progress(self, total: int | None, started: float) -> None:
        rows, seconds = self.totals.rows, time.monotonic() - started
        if time.monotonic() - self._reported < REPORT_EVERY:
            return
        self._reported = time.monotonic()
        rate = rows / max(seconds, 1e-3)
        estimate = f" of about {total:,}, {max(0, total - rows) / max(rate, 1):.0f} s left" if total else ""
        self.operation.show_line(f"{self.lane.id}: {format_count(rows, 'row')} compared{estimate}, {rate:,.0f} rows/s")


def build_unproven_error(lane: Lane, snapshot: SourceSnapshot, totals: DiffTotals) -> EnvironmentProblem:
    """The error for differences that may be changes on their way."""
    return EnvironmentProblem(
        f"{format_count(totals.count_differences(), 'row')} of lane {lane.id} differ at {snapshot.point}. But nothing "
        "shows whether the connector has sent all changes before it, so these may be changes on their way.",
        next_step="Add `connect: {url: ..., connector: ...}` to the source, whose connector needs `heartbeat.interval.ms`. "
        "Or compare with the event log: `--against log`.",
    )


def skip_ranges(ranges: Sequence[KeyRange], column: str, upto: int | None) -> Sequence[KeyRange | None]:
    """The ranges without the values of the column up to `upto`. Without ranges, one of all rows."""
    if upto is None:
        return ranges or [None]
    rest = [one for one in ranges if one.upto is None or one.upto > upto] or [KeyRange(column, upto, None)]
    return [replace(rest[0], above=upto), *rest[1:]]


def refuse_uncomparable(lane: Lane) -> None:
    """ConfigProblem for a lane whose target does not have the rows of its source."""
    if lane.policy in CHANGE_POLICIES:
        raise ConfigProblem(
            f"lane {lane.id} appends every change, so its target does not have the rows of its source ({lane.config_line})",
            next_step="Compare it with the event log: `--against log`.",
        )


# The columns of a lane's source and target: those that are compared, and those that are not.


@dataclass
class DiffColumns:
    """The columns of one lane. Fatal if the target lacks a key column.

    - `masked`: columns whose values are masked where records are decoded.
    - `keys`: the key columns, with the names of the target.
    - `not_compared`: sentences about what is not compared, each once.
    """

    lane: Lane
    source: SourceSnapshot
    target: TargetSnapshot
    masked: frozenset[str]
    keys: list[str] = field(init=False)
    not_compared: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.lane.policy in VERSION_POLICIES:
            self.exclude("Closed versions are not compared, as the source has none: `--against log` compares them.")
        for name, kind in self.source.unread.items():
            self.exclude(f"{name} is not compared: values of the type {kind} are not read.")
        self.keys = self.rename(self.source.keys)
        for name in self.keys:
            if name not in self.target.columns.names:
                raise Fatal(
                    f"The target of lane {self.lane.id} has no column {name}, which is part of its key.",
                    next_step=f"Build it again: `replicator replay {self.lane.table}`.",
                )

    def exclude(self, sentence: str) -> None:
        """Add a sentence to `not_compared`."""
        self.not_compared[sentence] = None

    def rename(self, names: Sequence[str]) -> list[str]:
        """Columns of the source, with their names in the target."""
        return [self.lane.row_transforms.column_transforms.get_new_name(name) for name in names]

    @property
    def has_other_keys(self) -> bool:
        """True if keys have other values in the target, or in the log."""
        transforms = self.lane.row_transforms.column_transforms
        return any(
            name in self.masked or transforms.get_rule(name).cast is not None or transforms.get_rule(name).mask is not None
            for name in self.source.keys
        )

    def list_summed(self) -> tuple[ComparedColumn, ...] | None:
        """The columns with checksums. None if values of a column have none, or if the lane changes values or rows."""
        transforms, target_names, kinds = self.lane.row_transforms, set(self.target.columns.names), self.source.kinds
        if self.masked or not is_plain(transforms):
            return None
        rename = transforms.column_transforms.get_new_name
        summed = []
        for name, kind in kinds.items():
            if (transforms.columns is not None and name not in transforms.columns) or not rename(name):
                continue
            if kind is None or rename(name) not in target_names:
                return None
            summed.append(ComparedColumn(name, rename(name), kind))
        compared = {*(column.target for column in summed), *self.rename(list(self.source.unread))}
        for name in self.target.columns.names:
            if name not in compared and not is_reserved(name):
                self.exclude(f"{name} is not compared: only the target has this column.")
        return tuple(summed) if self.target.can_sum(summed) else None

    def to_target(self, split: TableSplit) -> TableSplit:
        """The split with the column names of the target."""
        within = split.within
        if within is not None:
            (column,) = self.rename([within.column])
            within = KeyRange(column, within.above, within.upto)
        without = split.without.rename_columns(self.rename(split.without.column_names))
        return TableSplit(split.columns, tuple(self.keys), within, without, split.where)

    def share(self, expected: pa.Table, actual: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Both with the columns that are compared. Expected values have the form of the target's."""
        columns = [name for name in actual.column_names if not is_reserved(name)]
        names = [name for name in expected.column_names if not is_reserved(name)] or columns
        volatile = list_volatile_columns(self.lane.row_transforms)
        for name in volatile:
            self.exclude(f"{name} is not compared: it describes the record, not the row.")
        unread = {*self.rename(list(self.source.unread))}
        for name in (set(names) ^ set(columns)) - unread:
            self.exclude(f"{name} is not compared: only the {'target' if name in columns else 'source'} has this column.")
        shared = [name for name in names if name in columns and name not in volatile and name not in unread]
        if not expected.num_columns:
            expected = actual.select(shared).schema.empty_table()
        converted = {name: self.target.convert(name, expected[name].combine_chunks()) for name in shared}
        for name in shared:
            kind, target_type = converted[name].type, actual[name].type
            if name not in self.keys and not are_comparable(kind, target_type):
                self.exclude(f"{name} is not compared: its type is {target_type} in the target, and {kind} in the source.")
                del converted[name]
        ignored = self.lane.row_transforms.ignore_null
        for name in [name for name in converted if ignored is not None and name in ignored and name not in self.keys]:
            self.exclude(f"{name} is not compared: a NULL of the source does not change it (`ignore_null_updates`).")
            del converted[name]
        return pa.table(converted), actual.select(list(converted))


def refuse_changed_columns(lane: Lane, condition: Expr | None) -> None:
    """ConfigProblem if the lane stores other values in a column of the condition, or has no such column."""
    transforms = lane.row_transforms
    for name in sorted(list_columns(condition)) if condition is not None else ():
        rule = transforms.column_transforms.get_rule(name)
        if rule != NO_COLUMN_RULE or (transforms.columns is not None and name not in transforms.columns):
            raise ConfigProblem(
                f"`--where` names column {name!r}, which lane {lane.id} changes or leaves out ({lane.config_line})",
                next_step="Name other columns, or compare another target with `--sink`.",
            )


def refuse_unknown_columns(snapshot: SourceSnapshot, condition: Expr | None) -> None:
    """ConfigProblem if the source has no column of the condition that can be read."""
    kinds = snapshot.kinds
    unknown = sorted(list_columns(condition) - kinds.keys()) if condition is not None else []
    if unknown:
        raise ConfigProblem(
            f"`--where` names column {unknown[0]!r}, which is not among the columns of the source that can be read",
            next_step=f"The columns are: {', '.join(kinds)}.",
        )


def is_plain(transforms: RowTransforms) -> bool:
    """True if the target has the source's rows and values, with other names at most."""
    changes_rows = transforms.where or transforms.deletes or transforms.truncates or transforms.ignore_null
    rules = transforms.column_transforms
    return not (
        changes_rows
        or transforms.target_columns
        or rules.additions
        or any(rule.cast is not None or rule.mask is not None for _, rule in rules.rules)
    )


def list_volatile_columns(transforms: RowTransforms) -> list[str]:
    """Columns with a value that depends on the record."""
    return [name for name, added in transforms.column_transforms.additions if added.metadata]


# Compares a target with the event log of its table: also closed versions and appended changes, but no marked rows.

ASK_EVERY = 0.5


def compare_with_log(components: Components, lane: Lane, show_line: ShowLine, *, patience: float, show: int) -> LaneDiff:
    """Compare a target with what the event log gives at the position of the target's newest commit.

    The policy and the config are those of the lane. ConfigProblem without an event log, and EnvironmentProblem if the log
    does not reach the position within `patience` seconds, or the position lacks a partition. Errors of `read_rows_as_of`.
    """
    begun, started = datetime.now(UTC), time.monotonic()
    components.find_log(lane.table)
    with closing(components.open_sink(lane.sink)) as sink, open_comparison(sink, lane) as target:
        if target is None:
            raise Fatal(f"Lane {lane.id} has no target yet.", next_step="Start the daemon, and repeat the command.")
        at = _await_log(components, lane, target, patience)
        show_line(f"{lane.id}: applying the event log up to {at}")
        expected = read_rows_as_of(components, lane, at, lambda sink, name: get_reader(sink).read(name), show_line=show_line)
        actual = target.read_all()
        names = [name for name in expected.column_names if name != CDC_APPLIED_AT and name in actual.column_names]
        if CDC_DELETED in names:  # A purge removes marked rows from the target, but not their records from the log.
            expected, actual = (rows.filter(pc.invert(rows[CDC_DELETED].fill_null(False))) for rows in (expected, actual))
        converted = pa.table({name: target.convert(name, expected[name].combine_chunks()) for name in names})
        source_keys = components.register.load(lane.source).keys.get(lane.table, ())
        diff = compare_rows(converted, actual.select(names), list_identity_columns(lane, source_keys, names))
        others = sorted({*expected.column_names} ^ {*actual.column_names})
        return LaneDiff(
            lane=lane.id,
            table=lane.table,
            against="log",
            position=(str(at), str(at)),
            commit=target.commit,
            rows=expected.num_rows,
            missing=len(diff.missing),
            extra=len(diff.extra),
            different=len(diff.different),
            differences=tuple(diff.list_differences(show)),
            not_compared=tuple(f"{name} is not compared: only one side has this column." for name in others),
            begun=begun.isoformat(),
            seconds=round(time.monotonic() - started, 3),
        )


def _await_log(components: Components, lane: Lane, target: TargetSnapshot, patience: float) -> AsOf:
    topics, deadline = list_topics(components, lane), time.monotonic() + patience
    position = Position({p: offset for p, offset in target.position.items() if p.topic in topics and offset})
    while True:
        try:
            return resolve_as_of(components, lane, position)
        except PartitionMissing as error:  # No later record gives it to this position.
            raise EnvironmentProblem(
                f"Lane {lane.id} has applied no record of a partition of its table: {error.sentence}.",
                next_step="Repeat the command when the lane has caught up: `replicator status`.",
            ) from error
        except InvalidReadQuery as error:
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"The event log of {lane.table} does not reach the position of {lane.id} within {patience:.0f} s: "
                    f"{error.sentence}.",
                    next_step="See if the lane of the event log runs: `replicator status`.",
                ) from error
        time.sleep(ASK_EVERY)
