"""Rejected records, tried again: decoded under the configuration of now, and applied beside the stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, Reject, RejectCode, RowsWait
from replicator.domain.key_hashes import KeyHashes
from replicator.domain.plan import ApplyPlan, LaneState
from replicator.domain.position import Position, Span
from replicator.domain.schema_changes import Kind
from replicator.domain.table import TableSpec
from replicator.ports.dead_letters import OPEN, REPLAYED, DeadLetter, DeadLetters, Which
from replicator.ports.decoder import Decoder, KeepsPrivate
from replicator.ports.frames import F, Lane, Rejected, Run, Write
from replicator.ports.sink import Sink

from .catalog import Catalog, Unusable
from .holding import held_back
from .rejects import headers_from_text, headers_to_text
from .remembering import remembered
from .roster import Place, refused_id
from .schemas import LaneSchema, refuse_other_rule
from .shared import Shared

PIECE = 500
"""Letters that are tried at once."""
PATIENCE = 20.0
"""Seconds for one lane's answer: whoever tries records again must not make others wait for a sink that is away."""
LETS_IN = frozenset({Kind.WIDENED, Kind.ADDED})
"""Changes of a schema that take nothing from rows that are there."""
NOWHERE = Span(Position(), Position())

At = tuple[str, int, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of letters: `applied` are marked as replayed; `rejected` were rejected once more, by some lane; `left`
    could not be tried, each with a sentence."""

    applied: int = 0
    rejected: int = 0
    left: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(self.applied + other.applied, self.rejected + other.rejected, {**self.left, **other.left})


class Again(Generic[F]):
    """Letters of one piece on their way through one lane, or through what comes before lanes. What is rejected is written
    again, by the letter's own lane or this one, before anything that was made of it is committed."""

    def __init__(self, shared: Shared[F], store: DeadLetters, letters: Sequence[DeadLetter]) -> None:
        self._shared = shared
        self._store = store
        self.letters = {_at(letter): letter for letter in letters}
        self.raw: F = shared.engine.records(records_of(self.letters.values()))
        self.failed: set[At] = set()

    def reject(self, rows: F, stage: str, lane: str) -> None:
        """Durable when it returns."""
        now = self._shared.now()
        found = self._shared.engine.rejected(rows, [self.raw])
        self._store.write([self._written(rejected, stage, lane, now) for rejected in found])
        self.failed |= {(r.topic, r.partition, r.offset) for r in found}

    def _written(self, rejected: Rejected, stage: str, lane: str, now: object) -> DeadLetter:
        letter = self.letters[rejected.topic, rejected.partition, rejected.offset]
        why = Reject.parse(rejected.error)
        fresh = {"stage": stage, "code": why.code, "sentence": why.sentence, "last_seen": now, "attempts": 1}
        return replace(letter, lane=letter.lane or lane, state="open", **fresh)  # type: ignore[arg-type]


class Replay(Generic[F]):
    """Tries letters of one source again, in the thread of that source, or where none runs.

    A lane gets them by their own sequences and wherever it stands (`Write.beside`): what is older than what it holds is
    superseded, what it has is a duplicate. Killed anywhere and begun again, the outcome is the same: a letter is marked once
    every lane that lacks it has committed. Event logs have every record anyway.
    """

    def __init__(self, place: Place[F], decoder: Decoder, catalog: Catalog[F], shared: Shared[F]) -> None:
        self._place = place
        self._decoder = decoder
        self._catalog = catalog
        self._shared = shared
        self._engine = shared.engine
        self._store = shared.rejects.store
        shared.rejects.veil(place.name, decoder, private=place.private)
        self._waiting: Sequence[DeadLetter] = ()

    def run(self, letters: Iterable[DeadLetter]) -> Replayed:
        """Try them, in the order of their records. Raises what a sink or the store raises; what was done stays done."""
        done, usable = Replayed(), []
        letters = sorted(letters, key=_at)
        self._waiting = self._store.read(Which(lane="", state=OPEN))
        for letter in letters:
            why = self._unusable(letter)
            if why:
                done += Replayed(left={letter.event_id: why})
            else:
                usable.append(letter)
        for start in range(0, len(usable), PIECE):
            done += self._piece(self._veiled(usable[start : start + PIECE]))
        return done

    def _veiled(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        """The letters as they may be stored by now: masks may be younger than they. Of a record that killed the program
        nothing is decoded before it is tried."""
        if not isinstance(self._decoder, KeepsPrivate):
            return letters
        known = [letter for letter in letters if letter.code != RejectCode.CRASHED]
        hashes, frame = self._hashes(), self._decoder.veiled(records_of(known))
        kept = zip(known, *(frame[name].to_pylist() for name in ("key", "value", "headers")), strict=True)
        new = {
            (letter.event_id, letter.lane): replace(
                letter,
                key=key,
                key_hash=hashes.renewed(letter.key_hash, letter.key),
                record=value,
                headers=_headers_text(headers),
            )
            for letter, key, value, headers in kept
        }
        return [new.get((letter.event_id, letter.lane), letter) for letter in letters]

    def _hashes(self) -> KeyHashes:
        return self._shared.rejects.hashes(self._place.name)

    def _unusable(self, letter: DeadLetter) -> str:
        if not letter.is_placed:
            return "its letter is from before records were kept whole; load the table again, or purge it"
        if any(lane.id == letter.lane for lane in self._place.logs):
            return "it was rejected by an event log, which has no changes to apply"
        return ""

    def _piece(self, letters: Sequence[DeadLetter]) -> Replayed:
        """Letters that differ in their lane only share a record: lanes take them apart."""
        common = [letter for letter in letters if not letter.lane]
        first = Again(self._shared, self._store, common)
        tables = self._decodable(first)
        failed = {letter.event_id for letter in common if _at(letter) in first.failed}
        strays = self._strays(first)
        good = [letter for letter in common if letter.event_id not in {*failed, *strays}]
        left = {**strays, **self._held(good)}
        letters = [letter for letter in letters if letter.lane or letter.event_id not in left]
        good = [letter for letter in good if letter.event_id not in left]
        tables |= {letter.table for letter in letters if letter.lane}
        lanes = {lane.id: lane for lane in self._lanes(tables)}
        lost = self._lost(letters, lanes)
        mine = {}
        for lane in lanes.values():
            own = [letter for letter in letters if letter.lane == lane.id and letter.event_id not in lost]
            both = [*own, *(letter for letter in good if _at(letter) not in {_at(o) for o in own})]
            mine[lane.id] = sorted(both, key=_at)
        failed |= self._through_all(lanes, mine)
        tried = [letter for letter in letters if letter.event_id not in lost]
        self._store.mark([letter for letter in tried if letter.lane or letter in good], REPLAYED)
        return Replayed(len([o for o in tried if o.event_id not in failed]), len(failed), {**left, **lost})

    def _lost(self, letters: Sequence[DeadLetter], lanes: Mapping[str, Lane]) -> dict[str, str]:
        """Letters of lanes that are gone, and those whose record is of a table by now that their lane does not read."""
        found: dict[str, str] = {}
        for name in sorted({letter.lane for letter in letters if letter.lane}):
            lane, own = lanes.get(name), [letter for letter in letters if letter.lane == name]
            if lane is None:
                found |= {letter.event_id: f"there is no lane {name} any more; purge it" for letter in own}
            elif self._tables_of(own) - {lane.table}:
                found |= {letter.event_id: why for letter in own if (why := self._astray(letter, lane))}
        return found

    def _astray(self, letter: DeadLetter, lane: Lane) -> str:
        tables = self._tables_of([letter])
        if not tables or lane.table in tables:
            return ""
        said = f"its record is of table {', '.join(sorted(tables))} now, which lane {lane.id} does not read"
        return f"{said}; correct the source, or purge it"

    def _tables_of(self, letters: Sequence[DeadLetter]) -> set[str]:
        """The tables that records are of now; none of those that cannot be routed."""
        raw = Again(self._shared, self._store, letters).raw
        return {run.table for run in self._engine.route(raw, self._decoder).runs}

    def _strays(self, again: Again[F]) -> dict[str, str]:
        """Letters whose records are of tables that the configuration does not name any more: nobody would take them."""
        if not self._unknown(again):
            return {}
        alone = {letter.event_id: Again(self._shared, self._store, [letter]) for letter in again.letters.values()}
        found = {event: self._unknown(one) for event, one in alone.items()}
        return {
            event: f"no entry of `tables` takes {', '.join(tables)}; name it again, or purge the letter"
            for event, tables in found.items()
            if tables
        }

    def _unknown(self, again: Again[F]) -> list[str]:
        runs = self._engine.route(again.raw, self._decoder).runs if again.letters else ()
        return sorted({run.table for run in runs if self._place.rules_for(run.table) is None})

    def _held(self, good: Sequence[DeadLetter]) -> dict[str, str]:
        """Why some of these must wait: what was held back of a key is applied after what it is held back for."""
        tried = {letter.event_id for letter in good}
        known = {letter.event_id: letter for letter in (*self._waiting, *good) if letter.source in ("", self._place.name)}
        self._waiting = [letter for letter in self._waiting if letter.event_id not in tried]
        held = held_back(sorted(known.values(), key=_at), tried)
        stuck = [event for event, waits in held.items() if waits and event in tried]
        self._waiting = [*self._waiting, *(known[event] for event in stuck)]
        return dict.fromkeys(stuck, "a record of its key before it is not replayed yet")

    def _decodable(self, again: Again[F]) -> set[str]:
        """The tables of the records; those that cannot be decoded are rejected once more."""
        if not again.letters:
            return set()
        routed = self._engine.route(again.raw, self._decoder)
        if routed.reject_count:
            again.reject(routed.rejects, "route", "")
        for run in self._learnt(routed.runs):
            _, bad = self._engine.decode(run, self._decoder, self._catalog.schema(run))
            if self._engine.count(bad):
                again.reject(bad, "decode", "")
        return {run.table for run in routed.runs}

    def _learnt(self, runs: Iterable[Run[F]]) -> list[Run[F]]:
        """Those of tables that have lanes, all of which the catalog knows: a later run may tell the key that an earlier one
        lacks."""
        wanted = [run for run in runs if self._lanes([run.table])]
        try:
            for run in wanted:
                self._catalog.schema(run)
        except Unusable as error:
            raise error.cause from error
        return wanted

    def _lanes(self, tables: Iterable[str]) -> list[Lane]:
        found = []
        for table in sorted(tables):
            rules = self._place.rules_for(table)
            found += [lane for lane in (rules.lanes if rules else ()) if not self._shared.lanes.find(refused_id(lane))]
        return found

    def _through_all(self, lanes: Mapping[str, Lane], letters: Mapping[str, Sequence[DeadLetter]]) -> set[str]:
        """The event ids of those that their lane rejects. Letters that wait for rows of other lanes are tried again after
        these, as long as that helps."""
        failed: set[str] = set()
        patient = True
        while letters:
            waiting: dict[str, Sequence[DeadLetter]] = {}
            for lane, mine in letters.items():
                bad, waits = self._through(lanes[lane], mine, patient=patient)
                failed |= bad
                waiting |= {lane: waits} if waits else {}
            patient = sum(map(len, waiting.values())) < sum(map(len, letters.values()))
            letters = waiting
        return failed

    def _through(self, lane: Lane, letters: Sequence[DeadLetter], *, patient: bool) -> tuple[set[str], Sequence[DeadLetter]]:
        """The event ids of those that the lane rejects; and, where it is `patient`, those that wait for other rows. At once
        where it takes all of them; otherwise one by one: what was folded into a row that is rejected must not be lost."""
        if len(letters) > 1 and self._taken(lane, Again(self._shared, self._store, letters), alone=False):
            return set(), ()
        failed: set[str] = set()
        waiting = []
        for letter in letters:
            again = Again(self._shared, self._store, [letter])
            try:
                self._taken(lane, again, alone=True, patient=patient)
            except RowsWait:
                waiting.append(letter)
            failed |= {again.letters[at].event_id for at in again.failed}
        return failed, waiting

    def _taken(self, lane: Lane, again: Again[F], *, alone: bool, patient: bool = False) -> bool:
        """True when the lane took everything. Not `alone`, nothing is written where it rejects something. `patient`:
        RowsWait for what waits."""
        parts: dict[int, tuple[TableSpec, list[F]]] = {}
        routed = self._engine.route(again.raw, self._decoder)
        if routed.reject_count and not alone:
            return False
        if routed.reject_count:
            again.reject(routed.rejects, "route", lane.id)
        for run in self._learnt(run for run in routed.runs if run.table == lane.table):
            schema = self._catalog.schema(run)
            frame, bad = self._engine.decode(run, self._decoder, schema)
            union = self._catalog.frames_of(schema)
            parts.setdefault(id(union), (union, []))[1].append(frame)
            if self._engine.count(bad) and not alone:
                return False
            if self._engine.count(bad):
                again.reject(bad, "decode", lane.id)
        took = [self._united(lane, table, frames, again, alone=alone, patient=patient) for table, frames in parts.values()]
        return all(took) and not again.failed

    def _united(
        self, lane: Lane, table: TableSpec, frames: Sequence[F], again: Again[F], *, alone: bool, patient: bool
    ) -> bool:
        """`_taken`, of frames that go together as those of `table`."""
        plan = self._catalog.plan(lane, table, self._schema(lane, table).taken(table))
        changes = self._engine.unite(frames, table)
        if plan.shape:
            shaped = self._engine.shape(changes, plan)
            if shaped.counts.rejected and not alone:
                return False
            if shaped.counts.rejected:
                again.reject(shaped.rejects, "shape", lane.id)
            changes = shaped.frame
        return not self._engine.count(changes) or self._applied(lane, plan, changes, again, alone=alone, patient=patient)

    def _schema(self, lane: Lane, table: TableSpec) -> LaneSchema:
        """What the lane takes of the source's columns: of a lane that does not run, as its sink remembers it, but for
        columns that became wider, or more: the configuration may declare them since then, and the lane has them from where
        it stands."""
        run = self._shared.lanes.find(lane.id)
        if run is not None and run.schema.current is not None:
            return run.schema
        ask = self._place.workers[lane.sink].ask
        versions, state = self._answer(lane, ask(lambda sink: (remembered(sink, lane), sink.state(lane))))
        schema = LaneSchema(lane, versions)
        turn = None if state is None else schema.meets(table, state.position, self._shared.now())
        changes = turn.decision.changes if turn is not None and not turn.decision.stops else ()
        if turn is not None and changes and all(change.kind in LETS_IN for change in changes):
            schema.take(turn)
        return schema

    def _applied(self, lane: Lane, plan: ApplyPlan, changes: F, again: Again[F], *, alone: bool, patient: bool) -> bool:
        folded = [self._engine.fold(part, plan) for part in self._engine.segments(changes, plan.table)]
        refused: list[None] = []

        def reject(_: Lane, rows: F) -> None:
            if not alone:
                refused.append(None)
                raise Fatal("one of several records was rejected, so each is tried by itself")
            again.reject(rows, "apply", lane.id)

        def apply(sink: Sink[F]) -> None:
            refuse_other_rule(lane, (sink.state(lane) or LaneState()).rule, plan.rule)
            sink.prepare(lane, plan)
            for part in folded:
                sink.apply([Write(lane, plan, part, NOWHERE, beside=True, may_wait=patient)], reject)

        try:
            self._answer(lane, self._place.workers[lane.sink].ask(apply))
        except Exception:
            if refused:
                return False
            raise
        return not again.failed

    def _answer(self, lane: Lane, asked: Future[T]) -> T:
        try:
            return asked.result(PATIENCE)
        except TimeoutError:
            if asked.cancel():
                raise EnvironmentProblem(
                    f"Sink {lane.sink} of lane {lane.id} does not answer.", next_step="Ask again once it does."
                ) from None
            return asked.result()


def _at(letter: DeadLetter) -> At:
    return (letter.topic, letter.partition, letter.offset)


def records_of(letters: Iterable[DeadLetter]) -> pa.Table:
    """Their records as they came, as a raw frame."""
    rows = [
        {
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "timestamp": letter.timestamp,
            "headers": _headers(letter.headers),
            "key": letter.key,
            "value": letter.record,
        }
        for letter in letters
    ]
    return pa.Table.from_pylist(rows, RAW)


def _headers_text(headers: Sequence[Mapping[str, Any]] | None) -> str | None:
    return headers_to_text(None if headers is None else [(one["name"], one["value"]) for one in headers])


def _headers(text: str | None) -> list[dict[str, object]] | None:
    found = headers_from_text(text)
    return None if found is None else [{"name": name, "value": value} for name, value in found]


def of_no_source(letter: DeadLetter) -> ConfigProblem:
    """Why a letter cannot be tried: the configuration has no source for it."""
    return ConfigProblem(
        f"the source {letter.source!r} of {letter.event_id} is not in the configuration",
        next_step="Name it again, or forget its letters with `replicator dlq purge`.",
    )
