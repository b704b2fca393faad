"""Backfill: reads a whole table while its stream continues, then deletes the rows that the table no longer has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import pyarrow as pa

from replicator.application.lane_runs import Clock, monotonic
from replicator.domain.errors import EnvironmentProblem, Fatal, Fenced
from replicator.domain.plain_values import format_count
from replicator.domain.policy import CHANGE_POLICIES, VERSION_POLICIES
from replicator.domain.policy.plan import CDC_DELETED, cdc_sequence_columns, end_sequence_columns, last_sequence_columns
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch, ConsumeBatch, F, Lane, Stop
from replicator.ports.runtime import ShowLine
from replicator.ports.source import BACKFILL_TOPICS, Backfill, BackfillJournal, BackfillSnapshot, Source, SourceFeatures

FindOlderRows = Callable[[Lane, str], pa.Table | None]
"""The rows of a lane's target that match an SQL condition. None if there is no target yet."""
Status = Mapping[str, Any]
"""A status of a daemon or of a lane, in the form of `status.Report`."""
ASK_EVERY = 0.5
STARTS_WITHIN = 30.0
"""Maximum seconds from the lock of a starting daemon until its page answers."""
ANSWERS_WITHIN = 20.0
"""Maximum seconds without an answer of a daemon that has answered before. On a busy machine, single requests fail."""


@dataclass(frozen=True, slots=True)
class BackfillOutcome:
    """The result of a backfill. `deletes_of`: lanes whose targets were searched for rows that the table no longer
    has. `without`: for other lanes, why not, in sentences."""

    table: str
    rows: int
    deleted: int
    resumed: bool
    begun: str
    deletes_of: tuple[str, ...]
    without: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class BackfillWaiter:
    """Waits for the lanes of a table: in the daemon if one runs, otherwise in a run here.

    - `transactions`: the topic of the source's transactions, if its lanes follow them.
    - `ask_daemon`: the status of the daemon. None if none runs.
    - `run_here`: applies the stream in this process; the status of the lanes after that. Fenced while a daemon starts,
      runs or ends.
    """

    source: str
    lanes: Sequence[Lane]
    transactions: str | None
    ask_daemon: Callable[[], Status | None]
    run_here: Callable[[], Sequence[Status]]
    show_line: ShowLine

    def wait(self, position: Position) -> None:
        """Return when every lane has applied everything below `position`, of the stream and of the backfill's journal."""
        for _ in range(int(STARTS_WITHIN / ASK_EVERY)):
            if self.ask_daemon() is not None:
                self.show_line("waiting for the daemon to apply them")
                self._await_daemon(position)
                return
            with suppress(Fenced):  # The daemon is starting or ending.
                self._apply_here(position)
                return
            time.sleep(ASK_EVERY)
        self._apply_here(position)

    def refuse_halted(self) -> None:
        """Raise Fatal if a daemon runs and a lane is paused or suspended, because the backfill would have no effect."""
        status = self.ask_daemon()
        if status is not None:
            _refuse_halted(self._select_lanes(status))

    def _select_lanes(self, status: Status) -> list[Status]:
        lane_ids = {lane.id for lane in self.lanes}
        return [lane for lane in status["lanes"] if lane["id"] in lane_ids]

    def _apply_here(self, position: Position) -> None:
        by_id = {lane["id"]: lane for lane in self.run_here()}
        waiting = [x.id for x in self.lanes if x.id in by_id and not self.is_released(by_id[x.id], position)]
        if waiting:
            raise Fatal(
                f"Changes of {', '.join(waiting)} wait for the rest of their transactions, which has not arrived yet.",
                next_step="Start the daemon, which waits for it up to `patience`, and repeat the command.",
            )

    def is_released(self, lane: Status, position: Position) -> bool:
        """True if the lane got everything below `position`. A change that still waits could restore a deleted row."""
        if self.transactions is None:
            return True
        handed = Position.from_json(lane["handed"])
        return all(handed[p] >= o for p, o in position.items() if p in handed and p.topic != self.transactions)

    def _await_daemon(self, position: Position) -> None:
        """Wait until the daemon has read the stream up to `position` and the lanes have applied everything they got by
        then."""
        goal: dict[str, Position] | None = None
        answered = time.monotonic()
        while True:
            status = self.ask_daemon()
            if status is None and time.monotonic() < answered + ANSWERS_WITHIN:
                time.sleep(ASK_EVERY)
                continue
            if status is None:
                raise EnvironmentProblem(
                    "The daemon has ended.",
                    next_step="Repeat the command, with or without the daemon: it resumes.",
                )
            answered = time.monotonic()
            lanes = self._select_lanes(status)
            _refuse_halted(lanes)
            ready = all(lane["status"] == "running" and self.is_released(lane, position) for lane in lanes)
            read_to = [Position.from_json(one["position"]) for one in status["sources"] if one["name"] == self.source]
            if goal is None and ready and next(iter(read_to), Position()).covers(position):
                goal = {lane["id"]: Position.from_json(lane["handed"]) for lane in lanes}
            if goal is not None and all(
                Position.from_json(lane["position"]).covers(goal.get(lane["id"], Position())) for lane in lanes
            ):
                return
            time.sleep(ASK_EVERY)


def _refuse_halted(lanes: Sequence[Status]) -> None:
    if halt := find_halt(lanes):
        raise Fatal(halt.sentence, next_step=f"{halt.next_step} Then repeat the command: it resumes.")


def find_halt(lanes: Iterable[Status]) -> Fatal | None:
    """Why one of these lanes is paused or suspended; None if none is."""
    for lane in lanes:
        if lane["status"] in ("paused", "suspended"):
            sentence = f"Lane {lane['id']} is {lane['status']}{': ' + lane['error'] if lane['error'] else '.'}"
            return Fatal(sentence, next_step=lane["next_step"] or f"`replicator lanes resume {lane['id']}`.")
    return None


@dataclass(frozen=True)
class BackfillOperation:
    """One backfill of one table.

    `wait_until_applied` returns when every lane of the table has applied everything below a position, of the stream
    and of the backfill's journal. `end` is the current end of the stream.
    """

    backfill: Backfill
    wait_until_applied: Callable[[Position], None]
    end: Callable[[], Position]
    find_older_rows: FindOlderRows
    show_line: ShowLine
    check: Callable[[], None]
    """Raises if a lane of the table has stopped, because then the backfill would have no effect."""

    def run(self, table: str, lanes: Sequence[Lane], *, from_scratch: bool = False) -> BackfillOutcome:
        """Run the backfill. Safe to repeat at any time: it resumes where the last run stopped.

        Deletes the rows whose last change is older than the snapshot, after everything before the snapshot was
        applied. If the snapshot contained them, they would be newer.
        """

        def report_progress(sentence: str) -> None:
            self.show_line(sentence)
            self.check()

        self.check()
        snapshot = self.backfill.rows(report_progress, from_scratch=from_scratch)
        searched, notes = find_deletable_lanes(lanes, snapshot.keys)
        # Everything in the stream now is older than any change after the snapshot.
        self._wait_until_applied(Position({**self.end(), **snapshot.end}), "lanes apply the rows")
        deleted, end = self._delete_missing(searched, snapshot)
        if deleted:
            self._wait_until_applied(end, "lanes apply the deletes")
        for lane in searched:
            # The backfill has written all rows of the table. So no record has written rows without a sequence.
            (column,) = last_sequence_columns(1) if lane.policy in VERSION_POLICIES else cdc_sequence_columns(1)
            foreign = self.find_older_rows(lane, f'"{column}" IS NULL')
            if foreign is not None and foreign.num_rows:
                notes.append(
                    f"{lane.id} has {format_count(foreign.num_rows, 'row')} that the source table does not have and that no "
                    f"record has written ({column} is NULL). They existed before, or another program inserted them. Delete "
                    "them by hand if they are wrong."
                )
        self.backfill.finish()
        return BackfillOutcome(
            table, snapshot.rows, deleted, snapshot.resumed, snapshot.begun, tuple(one.id for one in searched), tuple(notes)
        )

    def _wait_until_applied(self, position: Position, sentence: str) -> None:
        self.show_line(sentence)
        self.wait_until_applied(position)

    def _delete_missing(self, lanes: Sequence[Lane], snapshot: BackfillSnapshot) -> tuple[int, Position]:
        older_rows = [self.find_older_rows(lane, older_rows_condition(lane, snapshot.below)) for lane in lanes]
        names = list(snapshot.keys)
        parts = [
            rows.select([lane.row_transforms.column_transforms.get_new_name(name) for name in names]).rename_columns(names)
            for lane, rows in zip(lanes, older_rows, strict=True)
            if rows is not None and rows.num_rows
        ]
        if not parts:
            return 0, snapshot.end
        keys = pa.concat_tables([part.cast(parts[0].schema) for part in parts]).group_by(names).aggregate([])
        self.show_line(f"checking {format_count(keys.num_rows, 'target row')} from before the snapshot")
        return self.backfill.deletes(keys)


def find_deletable_lanes(lanes: Sequence[Lane], keys: Sequence[str]) -> tuple[list[Lane], list[str]]:
    """The lanes whose targets can be searched for deleted rows by `keys`, and for the others the reason in a sentence."""
    ordered = next((lane for lane in lanes if lane.row_transforms.sequence_by), None)
    if ordered is not None:
        columns = ", ".join(ordered.row_transforms.sequence_by)
        return [], [
            f"Deleted rows of the table stay in its targets: {ordered.id} orders its changes by {columns}, "
            f"which a deleted row does not have ({ordered.config_line})."
        ]
    deletable, notes = [], []
    for lane in lanes:
        rules = {name: lane.row_transforms.column_transforms.get_rule(name) for name in keys}
        changed = next((name for name, rule in rules.items() if rule.drop or rule.mask or rule.cast), None)
        if lane.policy in CHANGE_POLICIES or lane.row_transforms.without_deletes:
            notes.append(f"No rows of {lane.id} are deleted: it keeps every change, or has `deletes: ignore`.")
        elif changed:
            why = f"its {changed} has another type than in the source, or a mask ({lane.config_line})"
            notes.append(f"No rows of {lane.id} are deleted: {why}.")
        else:
            deletable.append(lane)
    return deletable, notes


def older_rows_condition(lane: Lane, below: Sequence[int]) -> str:
    """An SQL condition for living rows of the lane's target whose last sequence is lower than `below`, its first
    elements."""
    if lane.policy in VERSION_POLICIES:
        return f'"{end_sequence_columns(1)[0]}" IS NULL AND {_compare_lower(last_sequence_columns(len(below)), below)}'
    living_condition = f' AND "{CDC_DELETED}" IS NOT TRUE' if lane.row_transforms.soft_deletes else ""
    return f"{_compare_lower(cdc_sequence_columns(len(below)), below)}{living_condition}"


def _compare_lower(columns: Sequence[str], than: Sequence[int]) -> str:
    """A comparison element by element. Not every dialect compares rows, or skips files by such a comparison."""
    first, at = f'"{columns[0]}"', than[0]
    if len(columns) == 1:
        return f"{first} < {at}"
    return f"({first} < {at} OR ({first} = {at} AND {_compare_lower(columns[1:], than[1:])}))"


# A source with the journal of its backfills: lanes see both as one stream.

LOOK_SECONDS = 1.0
"""Seconds between two checks for new records in the journal."""


class BackfilledSource(Generic[F]):
    """`Source` with the topics of `main` and of the journal.

    Neither waits for the other: their changes are ordered by sequence, not by arrival.
    """

    def __init__(self, main: Source[F], journal: BackfillJournal[F], clock: Clock = monotonic) -> None:
        self._main = main
        self._journal = journal
        self._clock = clock

    @property
    def features(self) -> SourceFeatures:
        """The features of the stream; only the journal has rows that were read outside its transactions."""
        return replace(self._main.features, get_concurrent_time=self._journal.get_newest_time)

    def run(self, start: Position, consume_batch: ConsumeBatch[F], stop: Stop, *, once: bool) -> None:
        """See `Source`. The journal is read after batches of the stream, which arrive at least every second."""
        journal_position, others = self._split_position(start)
        journal_reader = _JournalReader(self._journal, journal_position, consume_batch, stop, self._clock)
        until = self._journal.span().end if once else None
        journal_reader.read()

        def both(batch: Batch[F]) -> None:
            consume_batch(batch)
            journal_reader.read_when_due(until)

        self._main.run(others, both, stop, once=once)

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[F], stop: Stop) -> None:
        from_mine, from_others = self._split_position(start)
        to_mine, to_others = self._split_position(until)
        if to_others:
            self._main.read(from_others, to_others, consume_batch, stop)
        if to_mine and not stop.is_set():
            self._journal.read(from_mine, to_mine, consume_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """Losses of the stream. The journal loses nothing: a newer backfill replaces its records."""
        others = self._split_position(position)[1]
        return self._main.losses(others, {t: topic_id for t, topic_id in identity.items() if not _is_backfilled(t)})

    def start(self) -> Position:
        """See `Source`. Lanes without a position start with the whole journal, wherever they start in the stream."""
        return Position({**self._main.start(), **self._journal.span().start})

    def beginning(self) -> Position:
        return Position({**self._main.beginning(), **self._journal.span().start})

    def end(self) -> Position:
        return Position({**self._main.end(), **self._journal.span().end})

    def committed(self, position: Position) -> None:
        self._main.committed(self._split_position(position)[1])

    def close(self) -> None:
        self._main.close()

    def _split_position(self, position: Position) -> tuple[Position, Position]:
        """The position in the journal, and the position in the stream."""
        backfill = position.only(p for p in position if _is_backfilled(p.topic))
        return backfill, position.only(p for p in position if p not in backfill)


def _is_backfilled(topic: str) -> bool:
    return topic.startswith(BACKFILL_TOPICS)


class _JournalReader(Generic[F]):
    """Reads the journal between batches of the stream."""

    def __init__(
        self, journal: BackfillJournal[F], at: Position, consume_batch: ConsumeBatch[F], stop: Stop, clock: Clock
    ) -> None:
        self._journal = journal
        self._at = at
        self._apply = consume_batch
        self._stop = stop
        self._clock = clock
        self._looked = clock()

    def read_when_due(self, until: Position | None) -> None:
        """Read new records if a check is due, up to `until` at most."""
        if self._clock() - self._looked >= LOOK_SECONDS:
            self.read(until)
            self._looked = self._clock()

    def read(self, until: Position | None = None) -> None:
        """Read all new records, up to `until` at most."""

        def consume_batch(batch: Batch[F]) -> None:
            self._apply(batch)
            self._at = self._at.advanced_to(batch.span.end)

        stored = self._journal.span()
        end = stored.end if until is None else stored.end.only(until)
        unread = Position({p: o for p, o in end.items() if self._at.get(p, -1) < o})
        if unread and not self._stop.is_set():
            start = Position({p: self._at.get(p, stored.start[p]) for p in unread})
            self._journal.read(start, unread, consume_batch, self._stop)
