"""Dead letters: lists, describes and exports them, and retries them with the current configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import pyarrow as pa

from replicator.application.catalog import Catalog, UnusableTable
from replicator.application.lane_registry import find_target_problem
from replicator.application.lane_schema import LaneSchema, refuse_other_rule
from replicator.application.quarantine.rejects import find_blocked, headers_from_text, headers_to_text, to_pairs
from replicator.application.runtime_context import RuntimeContext
from replicator.application.sink_features import read_schema_versions
from replicator.application.stream.pipeline import SourcePipeline
from replicator.domain.change import RAW
from replicator.domain.errors import (
    GO_ON,
    ConfigProblem,
    EnvironmentProblem,
    Fatal,
    Reject,
    RejectCode,
    RowsWait,
    find_remedy,
)
from replicator.domain.event_log import encode_bytes
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.position import EMPTY_SPAN, RecordPosition
from replicator.domain.schema_evolution import SchemaChangeKind
from replicator.domain.table import TableSpec
from replicator.ports.components import STOP_LANE
from replicator.ports.frames import F, Lane, RecordSlice, Write
from replicator.ports.sink import Sink
from replicator.ports.stores import OPEN, REPLAYED, DeadLetter, DeadLetterFilter, DeadLetters

from .archive_files import open_archive, write_json_lines

# Dead letters for people.


def read_selected(store: DeadLetters, which: DeadLetterFilter) -> Sequence[DeadLetter]:
    """The selected dead letters, newest first. ConfigProblem for an unknown code."""
    refuse_unknown_code(store, which)
    return store.read(which)


def read_newest(store: DeadLetters, which: DeadLetterFilter, limit: int) -> tuple[Sequence[DeadLetter], int]:
    """At most `limit` of the selected dead letters, newest first, and the number of all of them. ConfigProblem for an
    unknown code."""
    refuse_unknown_code(store, which)
    letters = store.read(which, limit=limit)
    return letters, len(letters) if len(letters) < limit else len(store.read(which))


def read_named(store: DeadLetters, event: str, lane: str | None) -> Sequence[DeadLetter]:
    """The dead letters of one record: one, or one per lane that rejected it. ConfigProblem if there is none."""
    which = DeadLetterFilter(events=frozenset({event}), lane=lane)
    refuse_unknown(store, which)
    return store.read(which)


def refuse_unknown(store: DeadLetters, which: DeadLetterFilter) -> None:
    """Raise ConfigProblem if a named record has no dead letter in any state."""
    if not which.events:
        return
    stored = {letter.event_id for letter in store.read(replace(which, state=None))}
    missing = sorted(which.events - stored)
    if missing:
        ids = ", ".join(map(repr, missing))
        raise ConfigProblem(f"there is no dead letter {ids}", next_step="`replicator dlq list` shows the known ids.")


def refuse_unknown_code(store: DeadLetters, which: DeadLetterFilter) -> None:
    """Raise ConfigProblem for a code that neither the program knows nor a dead letter has."""
    codes = RejectCode.list_all()
    if which.code not in (None, *codes) and not store.read(DeadLetterFilter(code=which.code), limit=1):
        raise ConfigProblem(f"there is no code {which.code}", next_step=f"Use one of {', '.join(codes)}.")


def to_json(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON: UTF-8 bytes as text, other bytes as in archives."""
    fields = {name: getattr(letter, name) for name in letter.__dataclass_fields__}
    record, key = letter.record, letter.key
    plain = None if record is None else record.decode("utf-8", "replace")
    headers = None if letter.headers is None else json.loads(letter.headers)
    position = {"partition": letter.partition, "offset": letter.offset} if letter.has_position else {}
    unknown = {"partition": None, "offset": None}
    more = {"record": plain, "key": encode_bytes(key), "headers": headers, **unknown, **position}
    return {**fields, **more, "retry": letter.retry}


def describe_remedy(letter: DeadLetter, on_reject: str) -> str:
    """How to get the record applied, and, if it stops its lanes (`on_reject`), how they can continue without it."""
    step = find_remedy(Reject(letter.code, letter.sentence), letter.table)
    if on_reject != STOP_LANE or letter.state != OPEN:
        return step
    behind = f"{letter.topic}:{letter.partition}:{letter.offset + 1}"
    skip = (
        f", or skip it: `replicator lanes skip LANE --until {behind}`"
        if letter.stage != "route" and letter.has_position
        else ""
    )
    return f"{step} {GO_ON}{skip}.".lstrip()


def describe_position(letter: DeadLetter) -> str:
    """The position of the record: a file and line, or topic, partition and offset."""
    scheme, separator, path = letter.topic.partition("archive:")
    if separator and not scheme:
        return f"{path} line {letter.offset}"
    return f"{letter.topic} partition {letter.partition} offset {letter.offset}" if letter.has_position else letter.event_id


def export_records(letters: Iterable[DeadLetter], to: Path | BinaryIO) -> int:
    """Write the records of the dead letters as an archive, each once, ordered by partition and offset. Returns
    their number.

    A path selects the format by its suffix; a stream gets JSON Lines. Dead letters without a position are left out.
    """
    by_position = {(each.topic, each.partition, each.offset): each for each in letters if each.has_position}
    records = to_raw_frame(by_position[at] for at in sorted(by_position))
    if isinstance(to, Path):
        with open_archive(to) as write:
            write(records)
    else:
        write_json_lines(to.write, records)
    return int(records.num_rows)


def to_raw_frame(letters: Iterable[DeadLetter]) -> pa.Table:
    """The original records of the dead letters, as a raw frame."""
    rows = []
    for letter in letters:
        headers = headers_from_text(letter.headers)
        row = {
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "timestamp": letter.timestamp,
            "headers": None if headers is None else [{"name": name, "value": value} for name, value in headers],
            "key": letter.key,
            "value": letter.record,
        }
        rows.append(row)
    return pa.Table.from_pylist(rows, RAW)


# Retries dead letters: decodes them with the current configuration and applies them out of band.

SLICE_ROWS = 500
"""Dead letters that are retried at once."""
PATIENCE = 20.0
"""Seconds until a sink must have begun to answer; otherwise the command ends with an error."""
ACCEPTED_CHANGES = frozenset({SchemaChangeKind.WIDENED, SchemaChangeKind.ADDED})
"""Schema changes that remove nothing from existing rows."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryResult:
    """The result of a retry, as numbers of dead letters. `applied`: rejected by no lane. `rejected`: rejected again.
    `untried`: by event id, the reason in a sentence."""

    applied: int = 0
    rejected: int = 0
    untried: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: RetryResult) -> RetryResult:
        return RetryResult(self.applied + other.applied, self.rejected + other.rejected, {**self.untried, **other.untried})


def retry_selected(
    pipelines: Mapping[str, SourcePipeline[F]], runtime: RuntimeContext[F], which: DeadLetterFilter
) -> RetryResult:
    """Retry the selected dead letters with the pipelines of all sources, by name. ConfigProblem for a named record without
    a dead letter, for an unknown code, and for a source without a pipeline."""
    by_source: dict[str, list[DeadLetter]] = {}
    # Letters without a source have no position either: every pipeline refuses them in the same way.
    first_source, store = next(iter(pipelines)), runtime.rejects.store
    refuse_unknown(store, which)
    refuse_unknown_code(store, which)
    for letter in store.read(which):
        source = letter.source or first_source
        if source not in pipelines:
            raise (
                ConfigProblem(
                    f"the source {letter.source!r} of {letter.event_id} is not in the configuration",
                    next_step="Add the source again, or delete its dead letters with `replicator dlq purge`.",
                )
            )
        by_source.setdefault(source, []).append(letter)
    result = RetryResult()
    for source, letters in by_source.items():
        result += DeadLetterRetry(pipelines[source], runtime).retry(letters)
    return result


class RetryAttempt(Generic[F]):
    """One slice of dead letters on the way through one lane, or through routing and decoding.

    A new reject is stored before anything of the slice is committed. The reject keeps the dead letter's lane; one
    without a lane gets the lane that rejected it. `is_patient`: RowsWait for changes that wait for other rows.
    """

    def __init__(
        self, runtime: RuntimeContext[F], store: DeadLetters, letters: Sequence[DeadLetter], *, is_patient: bool = False
    ) -> None:
        self._runtime = runtime
        self._store = store
        self.is_patient = is_patient
        self.dead_letters = {letter.record_position: letter for letter in letters}
        self.raw: F = runtime.engine.frames.from_arrow(to_raw_frame(self.dead_letters.values()))
        self.failed_positions: set[RecordPosition] = set()

    @property
    def is_alone(self) -> bool:
        """True for a single record. With several, a reject means that nothing is written, and each is tried by itself."""
        return len(self.dead_letters) == 1

    def reject_rows(self, rows: F, stage: str, lane: str) -> None:
        """Store the rows as dead letters; durable on return."""
        now = self._runtime.now()
        rejects = self._runtime.engine.frames.rejected(rows, [self.raw])
        new_letters = []
        for rejected in rejects:
            letter = self.dead_letters[rejected.topic, rejected.partition, rejected.offset]
            why = Reject.parse(rejected.error)
            letter = replace(letter, stage=stage, code=why.code, sentence=why.sentence, lane=letter.lane or lane)
            new_letters.append(replace(letter, state=OPEN, last_seen=now, attempts=1))
        self._store.write(new_letters)
        self.failed_positions |= {(r.topic, r.partition, r.offset) for r in rejects}


class DeadLetterRetry(Generic[F]):
    """Retries dead letters of one source, while no daemon runs.

    One command may try a record several times in a lane. The first try is with the others of its slice. If one of them is
    rejected, each record is tried alone. It is tried again while it waits for rows of other records. It is rejected at
    most once in each lane, and then stays open until the next command.

    A lane applies records by their own sequences, not by its position (`Write.out_of_band`). A change older than the
    row is superseded; a change that was applied before is a duplicate. A retry that was killed can be repeated with
    the same result. A dead letter is marked only after every lane that lacks it has committed. Event logs have
    every record anyway.
    """

    def __init__(self, pipeline: SourcePipeline[F], runtime: RuntimeContext[F]) -> None:
        self._context = pipeline.context
        self._decoder = pipeline.decoder
        self._entry = entry = pipeline.context.register.load(pipeline.context.name)
        self._catalog = Catalog(runtime.engine.frames, pipeline.decoder, pipeline.context.rules_for, entry.keys)
        self._runtime = runtime
        self._engine = runtime.engine
        self._store = runtime.rejects.store
        self._waiting: Sequence[DeadLetter] = ()

    def retry(self, letters: Iterable[DeadLetter]) -> RetryResult:
        """Retry the dead letters, in the order of their records. Errors of a sink or the store pass through;
        finished work stays."""
        result, usable = RetryResult(), []
        letters = sorted(letters, key=attrgetter("record_position"))
        self._waiting = self._store.read(DeadLetterFilter(lane="", state=OPEN))
        event_logs = {lane.id for lane in self._context.event_logs}
        for letter in letters:
            if not letter.has_position:
                why = "an older version stored its dead letter without the whole record; load the table again, or purge it"
            elif letter.lane in event_logs:
                why = "it was rejected by an event log, which has no changes to apply"
            else:
                usable.append(letter)
                continue
            result += RetryResult(untried={letter.event_id: why})
        for start in range(0, len(usable), SLICE_ROWS):
            result += self._retry_slice(self._mask_dead_letters(usable[start : start + SLICE_ROWS]))
        return result

    def _mask_dead_letters(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """The dead letters under the masks of now, which may be newer than they are. A record that crashed the
        process is not decoded here."""
        mask_records = self._decoder.features.mask_records
        if mask_records is None:
            return letters
        decodable = [letter for letter in letters if letter.code != RejectCode.CRASHED]
        hashes, frame = self._runtime.rejects.get_hashes(self._context.name), mask_records(to_raw_frame(decodable))
        masked = zip(decodable, *(frame[name].to_pylist() for name in ("key", "value", "headers")), strict=True)
        new = {
            (letter.event_id, letter.lane): replace(
                letter,
                key=key,
                key_hash=hashes.renew_hash(letter.key_hash, letter.key),
                record=value,
                headers=headers_to_text(to_pairs(headers)),
            )
            for letter, key, value, headers in masked
        }
        return [new.get((letter.event_id, letter.lane), letter) for letter in letters]

    def _retry_slice(self, letters: Sequence[DeadLetter]) -> RetryResult:
        """Retry one slice. Dead letters that differ only in their lane share a record, so each lane is retried
        separately."""
        without_lane = [letter for letter in letters if not letter.lane]
        first = RetryAttempt(self._runtime, self._store, without_lane)
        tables = self._reject_undecodable(first)
        failed_events = {letter.event_id for letter in without_lane if letter.record_position in first.failed_positions}
        unapplied: dict[str, str] = {}
        if without_lane and self._describe_unapplied(without_lane):
            reasons = {letter.event_id: self._describe_unapplied([letter]) for letter in without_lane}
            unapplied = {event_id: why for event_id, why in reasons.items() if why}
        without_lane = [letter for letter in without_lane if letter.event_id not in {*failed_events, *unapplied}]
        untried = {**unapplied, **self._find_blocked(without_lane)}
        letters = [letter for letter in letters if letter.lane or letter.event_id not in untried]
        without_lane = [letter for letter in without_lane if letter.event_id not in untried]
        tables |= {letter.table for letter in letters if letter.lane}
        lanes = {lane.id: lane for lane in self._list_lanes(tables)}
        misplaced = self._find_misplaced(letters, lanes)
        letters_of_lane = {}
        for lane in lanes.values():
            own = [letter for letter in letters if letter.lane == lane.id and letter.event_id not in misplaced]
            positions = {letter.record_position for letter in own}
            own += [letter for letter in without_lane if letter.record_position not in positions]
            letters_of_lane[lane.id] = sorted(own, key=attrgetter("record_position"))
        failed_events |= self._retry_lanes(lanes, letters_of_lane)
        tried = [letter for letter in letters if letter.event_id not in misplaced]
        # A dead letter of a lane that was rejected again is stored with more `attempts` now, so `mark` leaves it open.
        # One without a lane is marked: each lane that rejected it has stored a dead letter of its own.
        self._store.mark([letter for letter in tried if letter.lane or letter in without_lane], REPLAYED)
        applied = sum(letter.event_id not in failed_events for letter in tried)
        return RetryResult(applied, len(failed_events), {**untried, **misplaced})

    def _find_misplaced(self, letters: Sequence[DeadLetter], lanes: Mapping[str, Lane]) -> dict[str, str]:
        """Dead letters of removed lanes, and those whose record now belongs to a table that their lane does not read."""
        misplaced: dict[str, str] = {}
        for name in sorted({letter.lane for letter in letters if letter.lane}):
            lane, own = lanes.get(name), [letter for letter in letters if letter.lane == name]
            if lane is None:
                misplaced |= {one.event_id: f"lane {name} does not exist any more; purge the dead letter" for one in own}
                continue
            if not self._find_tables(own) - {lane.table}:
                continue
            for letter in own:
                tables = self._find_tables([letter])
                if tables and lane.table not in tables:
                    misplaced[letter.event_id] = (
                        f"its record now belongs to table {', '.join(sorted(tables))}, which lane {lane.id} does not read; "
                        "correct the source, or purge the dead letter"
                    )
        return misplaced

    def _find_tables(self, letters: Sequence[DeadLetter]) -> set[str]:
        """The tables of the records now, without records that cannot be routed."""
        raw = RetryAttempt(self._runtime, self._store, letters).raw
        return {slice_.table for slice_ in self._engine.route(raw, self._decoder).slices}

    def _describe_unapplied(self, letters: Sequence[DeadLetter]) -> str:
        """The reasons why no lane applies changes of these tables; empty if one does, or if only event logs have them."""
        reasons = []
        for table in sorted(self._find_tables(letters)):
            rules = self._context.rules_for(table)
            if rules is None:
                reasons.append(f"no entry of `tables` matches {table}; add the table again, or purge the dead letter")
            elif rules.lanes and not self._list_lanes([table]):
                reasons.append(
                    f"no lane of table {table} has a target of its own (see `replicator status`); correct `into`, or purge "
                    "the dead letter"
                )
        return "; ".join(reasons)

    def _find_blocked(self, letters: Sequence[DeadLetter]) -> dict[str, str]:
        """Dead letters that must wait for an earlier record of their key, with the reason."""
        tried = {letter.event_id for letter in letters}
        by_event = {
            letter.event_id: letter for letter in (*self._waiting, *letters) if letter.source in ("", self._context.name)
        }
        self._waiting = [letter for letter in self._waiting if letter.event_id not in tried]
        waits_by_event = find_blocked(sorted(by_event.values(), key=attrgetter("record_position")), tried)
        stuck = [event for event, waits in waits_by_event.items() if waits and event in tried]
        self._waiting = [*self._waiting, *(by_event[event] for event in stuck)]
        return dict.fromkeys(stuck, "an earlier record of its key is not replayed yet")

    def _reject_undecodable(self, attempt: RetryAttempt[F]) -> set[str]:
        """Reject the records that cannot be routed or decoded. Returns the tables of the routed ones."""
        if not attempt.dead_letters:
            return set()
        routed = self._engine.route(attempt.raw, self._decoder)
        if routed.reject_count:
            attempt.reject_rows(routed.rejects, "route", "")
        for slice_ in self._learn_tables(routed.slices):
            _, bad = self._engine.decode(slice_, self._decoder, self._catalog.learn_schema(slice_))
            if self._engine.frames.count(bad):
                attempt.reject_rows(bad, "decode", "")
        return {slice_.table for slice_ in routed.slices}

    def _learn_tables(self, slices: Iterable[RecordSlice[F]]) -> list[RecordSlice[F]]:
        """The slices of tables with lanes. The catalog reads all of them first, because a later slice may have the key
        that an earlier one lacks."""
        lane_slices = [slice_ for slice_ in slices if self._list_lanes([slice_.table])]
        try:
            for slice_ in lane_slices:
                self._catalog.learn_schema(slice_)
        except UnusableTable as error:
            raise error.cause from error
        return lane_slices

    def _list_lanes(self, tables: Iterable[str]) -> list[Lane]:
        """The lanes of the tables, without those that have no target of their own."""
        lanes = []
        for table in sorted(tables):
            rules = self._context.rules_for(table)
            lanes += [lane for lane in (rules.lanes if rules else ()) if not find_target_problem(lane, self._entry)]
        return lanes

    def _retry_lanes(self, lanes: Mapping[str, Lane], letters: Mapping[str, Sequence[DeadLetter]]) -> set[str]:
        """The event ids that a lane rejects. Dead letters that wait for rows of other lanes are retried after
        these, while that helps."""
        failed_events: set[str] = set()
        is_patient = True
        while letters:
            waiting: dict[str, Sequence[DeadLetter]] = {}
            for lane, own in letters.items():
                bad, waits = self._retry_lane(lanes[lane], own, is_patient=is_patient)
                failed_events |= bad
                waiting |= {lane: waits} if waits else {}
            is_patient = sum(map(len, waiting.values())) < sum(map(len, letters.values()))
            letters = waiting
        return failed_events

    def _retry_lane(
        self, lane: Lane, letters: Sequence[DeadLetter], *, is_patient: bool
    ) -> tuple[set[str], Sequence[DeadLetter]]:
        """The event ids that the lane rejects, and, if `is_patient`, the dead letters that wait for other rows.

        All are applied at once if none is rejected, otherwise one by one. A change folded into a rejected row must
        not be lost.
        """
        if len(letters) > 1 and self._apply_all(lane, RetryAttempt(self._runtime, self._store, letters)):
            return set(), ()
        failed_events: set[str] = set()
        waiting = []
        for letter in letters:
            attempt = RetryAttempt(self._runtime, self._store, [letter], is_patient=is_patient)
            try:
                self._apply_all(lane, attempt)
            except RowsWait:
                waiting.append(letter)
            failed_events |= {attempt.dead_letters[at].event_id for at in attempt.failed_positions}
        return failed_events, waiting

    def _apply_all(self, lane: Lane, attempt: RetryAttempt[F]) -> bool:
        """True if the lane applied everything."""
        parts: dict[int, tuple[TableSpec, list[F]]] = {}
        routed = self._engine.route(attempt.raw, self._decoder)
        if routed.reject_count and not attempt.is_alone:
            return False
        if routed.reject_count:
            attempt.reject_rows(routed.rejects, "route", lane.id)
        for slice_ in self._learn_tables(one for one in routed.slices if one.table == lane.table):
            schema = self._catalog.learn_schema(slice_)
            frame, bad = self._engine.decode(slice_, self._decoder, schema)
            union = self._catalog.find_union(schema)
            parts.setdefault(id(union), (union, []))[1].append(frame)
            if self._engine.frames.count(bad) and not attempt.is_alone:
                return False
            if self._engine.frames.count(bad):
                attempt.reject_rows(bad, "decode", lane.id)
        outcomes = [self._apply_united(lane, table, frames, attempt) for table, frames in parts.values()]
        return all(outcomes) and not attempt.failed_positions

    def _apply_united(self, lane: Lane, table: TableSpec, frames: Sequence[F], attempt: RetryAttempt[F]) -> bool:
        """Apply frames that share the schema `table`; see `_apply_all`."""
        plan = self._catalog.plan_lane(lane, table, self._load_schema(lane, table).select_columns(table))
        changes = self._engine.frames.concat(frames, table)
        if plan.row_transforms:
            shaped = self._engine.transform_rows(changes, plan)
            if shaped.counts.rejected and not attempt.is_alone:
                return False
            if shaped.counts.rejected:
                attempt.reject_rows(shaped.rejects, "shape", lane.id)
            changes = shaped.frame
        return not self._engine.frames.count(changes) or self._apply_changes(lane, plan, changes, attempt)

    def _load_schema(self, lane: Lane, table: TableSpec) -> LaneSchema:
        """The schema of the lane, as its sink has stored it.

        Columns that are new or wider since then are accepted. The config may declare them now, and the lane will
        have them from its position on.
        """
        submit = self._context.workers[lane.sink].submit
        versions, state = self._wait_for_answer(
            lane, submit(lambda sink: (read_schema_versions(sink, lane), sink.state(lane)))
        )
        schema = LaneSchema(lane, versions)
        transition = None if state is None else schema.find_transition(table, state.position, self._runtime.now())
        changes = transition.decision.changes if transition is not None and not transition.decision.stops else ()
        if transition is not None and changes and all(change.kind in ACCEPTED_CHANGES for change in changes):
            schema.apply_transition(transition)
        return schema

    def _apply_changes(self, lane: Lane, plan: ApplyPlan, changes: F, attempt: RetryAttempt[F]) -> bool:
        folded = [self._engine.fold(part, plan) for part in self._engine.frames.segments(changes, plan.table)]
        refused: list[None] = []

        def reject(_: Lane, rows: F) -> None:
            if not attempt.is_alone:
                refused.append(None)
                raise Fatal("one of several records was rejected, so each is tried alone")
            attempt.reject_rows(rows, "apply", lane.id)

        def apply(sink: Sink[F]) -> None:
            refuse_other_rule(lane, (sink.state(lane) or LaneState()).rule, plan.rule)
            sink.prepare(lane, plan)
            for part in folded:
                sink.apply([Write(lane, plan, part, EMPTY_SPAN, out_of_band=True, may_wait=attempt.is_patient)], reject)

        try:
            self._wait_for_answer(lane, self._context.workers[lane.sink].submit(apply))
        except Exception:
            if refused:
                return False
            raise
        return not attempt.failed_positions

    def _wait_for_answer(self, lane: Lane, answer: Future[T]) -> T:
        try:
            return answer.result(PATIENCE)
        except TimeoutError:
            if answer.cancel():
                raise EnvironmentProblem(
                    f"Sink {lane.sink} of lane {lane.id} does not answer.",
                    next_step="Repeat the command when the sink answers again.",
                ) from None
            return answer.result()
