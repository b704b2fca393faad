"""The lane registry: the lanes of one source, where each began, and where each continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, Generic

import structlog

from replicator.application.delivery.bounded_queue import WAKE_SECONDS
from replicator.application.delivery.worker import Worker
from replicator.application.quarantine.poison_records import PoisonRecordFinder
from replicator.domain.errors import (
    ConfigProblem,
    DataLoss,
    EnvironmentProblem,
    Fenced,
    describe_reload,
    describe_reload_or_skip,
)
from replicator.domain.policy import CURRENT_ROW_POLICIES
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.transactions import Connector, RowLoss, find_row_loss
from replicator.ports.components import CONTINUE, Components, RulesFor, TransactionRules
from replicator.ports.frames import F, Lane
from replicator.ports.sink import Sink
from replicator.ports.source import Source
from replicator.ports.stores import Register, RegisterEntry

from .lane_runs import LaneRun, LaneStatus
from .lane_schema import LaneSchema, refuse_changed_rule
from .problem import Problem, Stopped, to_problem
from .runtime_context import RuntimeContext
from .sink_features import read_schema_versions

log = structlog.get_logger(__name__)

ReadState = Callable[[Sink[F]], LaneState | None]


@dataclass(frozen=True, slots=True)
class LaneStart:
    """The state of a lane, as its sink returns it, and the schemas that its sink has stored."""

    state: LaneState | None
    schemas: Sequence[SchemaVersion]


@dataclass(frozen=True)
class PendingLane:
    """A lane whose sink has yet to return its state.

    `placed`: ends when the lane has its position, or with the error that prevents it.
    """

    run: LaneRun
    generation: int
    answer: Future[LaneStart]
    placed: Future[None]

    def resolve(self) -> None:
        """Complete `placed` with the outcome."""
        problem = self.run.problem
        if self.run.status is LaneStatus.SUSPENDED and problem is not None:
            self.placed.set_exception(problem.to_error())
        elif self.run.status is LaneStatus.STARTING:
            sentence = f"The daemon ended before lane {self.run.lane.id} answered."
            step = "Start the daemon, and repeat the command."
            self.placed.set_exception(EnvironmentProblem(sentence, next_step=step))
        else:
            self.placed.set_result(None)


@dataclass(frozen=True)
class SourceContext(Generic[F]):
    """All that the lanes of one source share: the source, its rules, event logs, workers by sink name, and the register.

    - `transactions`: the rules by which its lanes follow source transactions; None if they do not.
    - `on_reject`: the reaction to rejected records whose table is unknown.
    - `poison_records`: finds records that crash the process; None: crashes are not noted.
    - `private`: some table has columns that are masked in every stored record.
    - `has_backfills`: tables can also be loaded from their database.
    """

    name: str
    source: Source[F]
    rules_for: RulesFor
    event_logs: Sequence[Lane]
    workers: Mapping[str, Worker[F]]
    register: Register
    transactions: TransactionRules | None = None
    on_reject: str = CONTINUE
    poison_records: PoisonRecordFinder[F] | None = None
    private: bool = False
    has_backfills: bool = False


class LaneRegistry(Generic[F]):
    """The lanes of a source. Only the thread of the source uses it.

    Before a lane gets records of a partition, the register has stored where that partition began for it. So
    after a crash, a lane that has applied nothing of it starts there again, even if other lanes are further
    ahead.
    """

    def __init__(self, context: SourceContext[F], runtime: RuntimeContext[F]) -> None:
        self._context = context
        self._runtime = runtime
        self._pending: dict[str, PendingLane] = {}
        self.tables: dict[str, list[LaneRun]] = {}
        self.event_logs: list[LaneRun] = []
        self.topics: dict[str, frozenset[str]] = {}
        self.keys: dict[str, tuple[str, ...]] = {}
        self.knows_tables = False
        self.began = Position()
        self.connectors: dict[tuple[str, str], Connector] = {}
        self._excluded: dict[str, set[str]] = {}
        self._new_lane_ids: set[str] = set()
        """Lanes of new tables that have no position yet. Their first records were just read, so nothing can be lost."""
        self._has_learned = False

    def open_lanes(self, source_start: Position, first_offsets: Position) -> None:
        """Add every lane that the register or the configuration names, and request their states from the sinks.

        - `source_start`: where lanes without a position begin.
        - `first_offsets`: the first offset of each partition that the source still has.

        From the first start on, the register has one begin per partition. A newer partition began with its first offset:
        `source_start` may lie above records that arrived while nothing ran. A partition that now ends below its stored
        begin was created again, and began with its first offset too. Each lane checks for itself if it lost records.
        """
        entry = self._context.register.load(self._context.name)
        began = entry.began or Position()
        lost = self._context.source.losses(began, {})
        continued = {p: o for p, o in began.items() if p not in lost or o <= first_offsets.get(p, o)}
        self.began = source_start if entry.began is None else Position({**first_offsets, **continued})
        self.knows_tables = bool(entry.topics)
        self.connectors = {each.identity: each for each in entry.connectors}
        self._warn_of_loss(None)
        self.topics = dict(entry.topics)
        self.keys.update(entry.keys)
        for lane in self._context.event_logs:
            self.event_logs.append(self._add_lane(lane, entry.beginnings.get(lane.id, source_start)))
        without_target = set()
        for table in entry.topics:
            rules = self._context.rules_for(table)
            if any(is_target_taken(lane, entry) for lane in (rules.lanes if rules else ())):
                without_target.add(table)
        # Tables whose target belongs to another table come last, so that they do not get it.
        for table in sorted(entry.topics, key=lambda table: table in without_target):
            table_start = Position({p: o for p, o in source_start.items() if p.topic in entry.topics[table]})
            self._open_table(table, lambda lane, table_start=table_start: entry.beginnings.get(lane.id, table_start))  # type: ignore[misc]
        self._save_entry()

    def list_runs(self) -> list[LaneRun]:
        """Every lane of the source."""
        return [*self.event_logs, *(run for runs in self.tables.values() for run in runs)]

    def register_batch(self, topics: Mapping[str, frozenset[str]], span: Span) -> Sequence[str]:
        """Store the tables and partitions of a batch, durably, before its writes are queued. Returns the new tables."""
        new = [table for table in topics if table not in self.topics]
        has_grown = any(not names <= self.topics.get(table, frozenset()) for table, names in topics.items())
        for table, names in topics.items():
            self._add_topics(table, names)
        for table in new:
            self._open_table(table, lambda _: Position())
            self._new_lane_ids |= {run.lane.id for run in self.tables.get(table, ())}
        for run in self.list_runs():
            begin = {p: o for p, o in span.start.items() if p not in run.begin and self.is_covered(run, p)}
            if begin:
                has_grown = True
                run.begin = Position({**begin, **run.begin})
                if run.status is not LaneStatus.STARTING:
                    run.queued_to = Position({**begin, **run.queued_to})
                    run.processed_to = Position({**begin, **run.processed_to})
        if new_partitions := [p for p in span.start if p not in self.began]:
            first = self._get_oldest().only(new_partitions)
            self.began = Position({**first, **self.began})
            has_grown = has_grown or bool(first)
        if has_grown:
            self._save_entry()
        return new

    def is_new(self, table: str) -> bool:
        """True while a lane of a table that appeared in the stream has no position yet."""
        runs = self.tables.get(table, ())
        return any(run.status is LaneStatus.STARTING and run.lane.id in self._new_lane_ids for run in runs)

    def store_key(self, table: str, keys: tuple[str, ...]) -> None:
        """Note the key of a table; `save_keys` makes it durable."""
        if keys and self.keys.get(table) != keys:
            self.keys[table] = keys
            self._has_learned = True

    def save_keys(self) -> None:
        """Save new keys before their tables' writes are queued. One save for all tables: there may be a thousand."""
        if self._has_learned:
            self._save_entry()

    def store_connector(self, connector: Connector | None) -> None:
        """Store, durably, the connector that wrote the records.

        Several connectors may write the topics of one source.
        """
        before = self.connectors.get(connector.identity) if connector else None
        if connector is None or connector == before:
            return
        if connector.has_metadata is None and before and before.version == connector.version:
            return  # Records of a snapshot: they show less about the connector than earlier ones.
        loss = self.row_loss
        self.connectors[connector.identity] = connector
        self._warn_of_loss(loss)
        if before and find_row_loss(before) and not find_row_loss(connector):
            log.warning(
                "rows may have been lost",
                source=self._context.name,
                sentence=f"Connector {before.version} of {before.prefix} was upgraded. Rows that it lost before stay lost.",
                next_step="Load the tables again if you have not done so: `replicator backfill TABLE`.",
            )
        self._save_entry()

    def _warn_of_loss(self, before: RowLoss | None) -> None:
        if (loss := self.row_loss) is not None and loss != before:
            log.warning("rows may be lost", source=self._context.name, sentence=loss.sentence, next_step=loss.next_step)

    @property
    def row_loss(self) -> RowLoss | None:
        """The rows that a connector may lose before it sends them; None if none is found."""
        losses = (find_row_loss(self.connectors[identity]) for identity in sorted(self.connectors))
        return next((loss for loss in losses if loss), None)

    def list_affected_tables(self, span: Span) -> list[str]:
        """The tables that have a topic in `span`."""
        names = {p.topic for p in span.end}
        return [table for table in self.tables if self.topics[table] & names]

    def is_covered(self, run: LaneRun, partition: TopicPartition) -> bool:
        """True if the lane reads the partition."""
        if run.is_event_log:
            return partition.topic not in self.list_excluded_topics(run.lane.sink)
        return partition.topic in self.topics.get(run.lane.table, frozenset())

    def list_excluded_topics(self, sink: str) -> set[str]:
        """Topics that an event-log sink skips: all their tables are configured, and none of these names the sink."""
        if sink not in self._excluded:
            wanted: set[str] = set()
            unwanted: set[str] = set()
            for table, names in self.topics.items():
                rules = self._context.rules_for(table)
                (unwanted if rules is not None and sink not in rules.event_logs else wanted).update(names)
            self._excluded[sink] = unwanted - wanted
        return self._excluded[sink]

    def describe_missing(self, run: LaneRun) -> Sequence[str]:
        """The records that the lane would miss if it began again. Transaction marks do not count: they have no rows."""
        rules = self._context.transactions
        marks = rules.topic if rules else ""
        return describe_missing(
            self._context.source, run.lane, run.begin, lambda p: p.topic != marks and self.is_covered(run, p)
        )

    def suspend_incomplete(self) -> None:
        """Suspend lanes that miss records because files with older records arrived after newer ones were read."""
        oldest = self._get_oldest()
        for run in self.list_runs():
            if run.is_active and (late := self._find_late_records(run, oldest)):
                self._runtime.lanes.suspend(run, late)

    def _get_oldest(self) -> Position:
        files = self._context.source.features.files
        return Position() if files is None else files.oldest()

    def _find_late_records(self, run: LaneRun, oldest: Position) -> Problem | None:
        """The reason why the lane misses records below the begin of a partition; None if it misses none."""
        missed = [p for p, at in oldest.items() if at < self.began.get(p, at) and self.is_covered(run, p)]
        begin = {p: min(self.began[p], run.begin.get(p, self.began[p])) for p in missed}
        late = [
            f"the records at offsets {oldest[p]} to {first - 1} of {p}"
            for p, first in sorted(begin.items())
            if oldest[p] < first
        ]
        if not late:
            return None
        error = DataLoss(
            f"Lane {run.lane.id} lacks {'; '.join(late)}: their files appeared after later files had been read.",
            next_step=f"{describe_reload(run.lane.id)} To continue without these records, remove the files, and start "
            "again.",
        )
        return to_problem(error)

    def receive_states(self, patience: float) -> None:
        """Let lanes whose sinks have returned their states catch up from there. Waits up to `patience` seconds for the
        other states."""
        futures = [pending.answer for pending in self._pending.values()]
        deadline = (now := self._runtime.clock()) + patience
        while wait(futures, timeout=min(WAKE_SECONDS, deadline - now)).not_done:
            now = self._runtime.clock()
            if now >= deadline or self._runtime.stop.is_set():
                break
        answered = [(lane_id, pending) for lane_id, pending in self._pending.items() if pending.answer.done()]
        oldest = self._get_oldest() if answered else Position()
        for lane_id, pending in answered:
            if self._runtime.lanes.is_live(pending.run, pending.generation):
                self._begin_catch_up(pending.run, pending.answer, oldest)
            del self._pending[lane_id]
            pending.resolve()

    @property
    def has_pending(self) -> bool:
        """True while a sink has not yet returned the state of one of its lanes."""
        return bool(self._pending)

    def restart_lane(
        self, run: LaneRun, read_state: ReadState[F] | None = None, begin: Position | None = None
    ) -> Future[None]:
        """Void the lane's writes in flight and request its state from its sink. Returns `PendingLane.placed`.

        `read_state` may change the state in the sink first. `begin`: where a lane without a position begins from
        now on.
        """
        self._runtime.lanes.restart(run)
        if begin is not None:
            run.begin = begin
            self._save_entry()
        return self._request_state(run, read_state)

    def _add_topics(self, table: str, names: frozenset[str]) -> None:
        self.topics[table] = self.topics.get(table, frozenset()) | names
        self._excluded.clear()

    def _open_table(self, table: str, find_begin: Callable[[Lane], Position]) -> None:
        rules = self._context.rules_for(table)
        if rules is None or not rules.lanes:
            return
        self.tables[table] = [self._add_lane(lane, find_begin(lane)) for lane in rules.lanes]

    def _add_lane(self, lane: Lane, begin: Position) -> LaneRun:
        other = self._runtime.lanes.find(lane.id)
        if other is not None or lane.refused:
            run = self._runtime.lanes.add(replace(lane, id=make_refused_id(lane)))
            if lane.refused or other is None:
                error = make_target_name_error(lane)
            else:
                error = make_target_taken_error(lane, other.lane.table)
            self._runtime.lanes.suspend(run, to_problem(error))
            return run
        run = self._runtime.lanes.add(lane)
        run.begin = begin
        self._request_state(run)
        return run

    def _save_entry(self) -> None:
        self._has_learned = False
        beginnings = {run.lane.id: run.begin for run in self.list_runs()}
        self._context.register.save(
            self._context.name,
            RegisterEntry(self.topics, beginnings, dict(self.keys), self.began, tuple(self.connectors.values())),
        )

    def _request_state(self, run: LaneRun, read_state: ReadState[F] | None = None) -> Future[None]:
        lane = run.lane
        worker = self._context.workers[lane.sink]
        read = read_state or (lambda _: worker.get_state(lane))
        future = worker.submit(lambda sink: LaneStart(read(sink), read_schema_versions(sink, lane) if lane.table else ()))
        before = self._pending.get(lane.id)
        if before is not None:
            sentence = f"Another command for lane {lane.id} replaced this one."
            step = "See `replicator status`, then repeat the command."
            before.placed.set_exception(EnvironmentProblem(sentence, next_step=step))
        self._pending[lane.id] = PendingLane(run, run.generation, future, Future())
        return self._pending[lane.id].placed

    def _begin_catch_up(self, run: LaneRun, future: Future[LaneStart], oldest: Position) -> None:
        try:
            lane_start = future.result()
            state = lane_start.state or LaneState()
        except Fenced:
            raise
        except Stopped:
            return
        except Exception as error:
            self._runtime.lanes.suspend(run, to_problem(error), error)
            return
        if not run.is_event_log:
            self._add_topics(run.lane.table, frozenset(p.topic for p in state.position))
        run.rule = state.rule
        position = Position({**run.begin, **state.position})
        lost = dict(describe_removed(self._context.source, run.begin, state.position))
        if state.position or run.lane.id not in self._new_lane_ids:
            lost |= self._context.source.losses(position, dict(state.identity))
        self._new_lane_ids.discard(run.lane.id)
        lost = {p: why for p, why in lost.items() if self.is_covered(run, p)}
        problem = self._make_loss(run, lost) if lost else self._find_late_records(run, oldest)
        if problem:
            self._runtime.lanes.suspend(run, problem)
        else:
            rules = self._context.rules_for(run.lane.table)
            try:
                refuse_changed_rule(run.lane, state.rule, lane_start.schemas, rules.keys if rules else ())
            except ConfigProblem as error:
                self._runtime.lanes.suspend(run, to_problem(error), error)
                return
            schema = LaneSchema(run.lane, lane_start.schemas, is_target_empty=not state.position)
            self._runtime.lanes.place_lane(run, position, state.position, state.purged_up_to, schema)

    def _make_loss(self, run: LaneRun, lost: Mapping[TopicPartition, str]) -> Problem:
        context, lane = self._context, run.lane
        sentences = "; ".join(f"{p}: {why.rstrip('.')}" for p, why in sorted(lost.items()))
        until = context.source.start().only(lost).to_option()
        table = lane.table if context.has_backfills else ""
        is_short = bool(self.describe_missing(run))
        both = describe_reload_or_skip(lane.id, until, table=table, is_short=is_short)
        error = DataLoss(
            f"Lane {lane.id} cannot continue without losing changes: {sentences}.",
            next_step=both if until else describe_reload(lane.id, is_short=is_short),
        )
        return to_problem(error)


def describe_removed(source: Source[Any], begin: Position, applied: Position) -> dict[TopicPartition, str]:
    """Per partition that log retention has truncated: why a lane that begins there and has applied nothing misses
    records."""
    removed = Position() if source.features.removed is None else source.features.removed()
    return {
        partition: f"log retention has removed the records below offset {first} of {partition} from the event log"
        for partition, first in removed.items()
        if partition not in applied and begin.get(partition, 0) <= first
    }


def list_lanes(components: Components) -> list[Lane]:
    """The event logs, and the lanes of every table that was read so far."""
    lanes: list[Lane] = []
    for name in sorted(components.sources):
        source = components.sources[name]
        lanes += source.event_logs
        entry = components.register.load(name)
        for table in sorted(entry.topics):
            rules = source.rules_for(table)
            for lane in rules.lanes if rules else ():
                lanes.append(replace(lane, id=make_refused_id(lane)) if is_target_taken(lane, entry) else lane)
    return lanes


def make_refused_id(lane: Lane) -> str:
    """The id of a lane whose target belongs to another table: it includes the lane's own table."""
    return lane.id if lane.id.endswith(f" ({lane.table})") else f"{lane.id} ({lane.table})"


def is_target_taken(lane: Lane, entry: RegisterEntry) -> bool:
    """True if the lane's target belongs to another table, by the register entry of its source.

    The last run stored a lane without a target by its refused id. It may also not have read the table, or used another
    target name. Then no topic of the table is among the topics with which the lane of this id began.
    """
    refused, topics = make_refused_id(lane), entry.topics.get(lane.table, frozenset())
    stored_topics = {partition.topic for partition in entry.beginnings.get(lane.id, Position())}
    is_stored_as_refused = refused == lane.id or refused in entry.beginnings
    return is_stored_as_refused or bool(lane.table and stored_topics and not stored_topics & topics)


def find_target_problem(lane: Lane, entry: RegisterEntry) -> ConfigProblem | None:
    """The reason why the lane gets no records: its target has no valid name, or belongs to another table.

    `entry`: the register entry of its source, so that a process that runs no pipeline can ask, too.
    """
    if lane.refused:
        return make_target_name_error(lane)
    return make_target_taken_error(lane) if is_target_taken(lane, entry) else None


def make_target_taken_error(lane: Lane, other: str = "") -> ConfigProblem:
    """The error for a lane whose target already holds the rows of the table `other`."""
    return ConfigProblem(
        f"Tables {other or 'of two schemas'} and {lane.table} both go to {lane.into} in sink {lane.sink}.",
        next_step=f"A target has the rows of one table. Give one of them another name with `into` ({lane.config_line}), and "
        "restart. To read both together, create a view.",
    )


def make_target_name_error(lane: Lane) -> ConfigProblem:
    """The error for a lane whose target has no valid name."""
    return ConfigProblem(
        f"The name of the target of table {lane.table} in sink {lane.sink}, {lane.into!r}, {lane.refused}.",
        next_step=f"Name the table in an entry of its own, or change `into` ({lane.config_line}), and restart.",
    )


# Records that a reload would miss, since the source no longer has them. A reload is refused until that is accepted.

CoversPartition = Callable[[TopicPartition], bool]


def describe_missing(source: Source[Any], lane: Lane, begin: Position, covers: CoversPartition) -> Sequence[str]:
    """The records that the lane would miss if it began again; empty if none. `begin`: where its partitions began."""
    start, beginning, end = source.start(), source.beginning(), source.end()
    starts = {p: offset for p, offset in start.items() if covers(p)}
    # With sparse offsets, the only known first offset is the stored one.
    sparse = source.features.sparse_offsets
    expected = {p: begin.get(p, at) if sparse else 0 for p, at in {**begin, **starts}.items() if covers(p)}
    losses = source.losses(Position(expected), {})
    # Records that start with a snapshot of all rows are enough for a target without history.
    after_snapshots = source.features.after_snapshots if lane.policy in CURRENT_ROW_POLICIES else None
    sentences = []
    for partition, first in sorted(expected.items()):
        at = starts.get(partition)
        if at is None:
            sentences += [losses[partition]] if partition in losses else []
            continue
        is_lost = at > first and (partition in losses or at > beginning.get(partition, at))
        if is_lost and (after_snapshots is None or after_snapshots(Position({partition: at}))[partition] == at):
            sentences.append(f"The source begins at offset {at} of {partition}.")
    if not sentences and all(end.get(partition, at) <= at for partition, at in starts.items()):
        sentences.append("The source has no records of its table.")
    return sentences


def refuse_missing(lane: Lane, sentences: Sequence[str], *, has_backfills: bool) -> None:
    """Raise DataLoss with these sentences, if there are any."""
    if sentences:
        step = "`replicator backfill {}` loads the rows as they are now. " if has_backfills else ""
        raise DataLoss(
            f"Lane {lane.id} was not emptied, because the source does not have all its rows any more. {' '.join(sentences)}",
            next_step=f"{step.format(lane.table) if lane.table else ''}{describe_reload(lane.id, is_short=True)}",
        )
