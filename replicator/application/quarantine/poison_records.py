"""Records that end the program: found by where it ended, and decoded no more."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import structlog

from replicator.application.durable import make_folder
from replicator.domain.errors import DecoderDied, EnvironmentProblem
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Batch, F

from .poison_filter import RecordPosition, filter_poison_records
from .rejects import Rejects

log = structlog.get_logger(__name__)

MAX_CRASHES = 3
"""So often a record must have ended the program, alone, before it is decoded no more."""
SPLITS = 16
"""Into so many pieces what may hold such a record is cut each time: a batch of 50,000 takes four deaths to one record."""
MAIN_READER = ""
"""Who reads the main stream; lanes that catch up read for themselves, by their ids."""


@dataclass(frozen=True, slots=True)
class SuspectedSpan:
    """The program died, `deaths` times in a row, while this reader decoded this span."""

    span: Span
    reader: str
    deaths: int = 1

    @property
    def record_position(self) -> RecordPosition | None:
        """The record, once it is one alone."""
        if len(self.span.end) != 1:
            return None
        ((at, end),) = self.span.end.items()
        return (*at, self.span.start[at]) if end - self.span.start[at] == 1 else None


@dataclass(frozen=True, slots=True)
class CrashNotes:
    """What outlives the program. `running`: it has begun, and not ended. `decoding`: what it decodes now, where that is
    noted. `poison_records`: records that are to become dead letters; `rejected`: some became dead letters, perhaps open
    ones."""

    running: bool = False
    decoding: SuspectedSpan | None = None
    suspect: SuspectedSpan | None = None
    poison_records: tuple[RecordPosition, ...] = ()
    rejected: bool = False

    def count_crash(self) -> CrashNotes:
        """What is to be thought of a run that did not end."""
        died, known = self.decoding, self.suspect
        if not self.running or died is None:
            return self
        if known is not None and (known.span, known.reader) == (died.span, died.reader):
            died = replace(died, deaths=known.deaths + 1)
        if died.record_position is not None and died.deaths >= MAX_CRASHES:
            return CrashNotes(True, None, None, (*self.poison_records, died.record_position), True)
        return replace(self, decoding=None, suspect=died)


class PoisonRecordFinder(Generic[F]):
    """What one source's records did to earlier runs. Used by the thread of the source, but for `filter_poison_records`.

    A run notes that it began and that it ended. Only after one that did not end is what is decoded noted too, before it is.
    If it ends again there, that span is cut into pieces, which go their way one by one, and so on, until one
    record is left; that is decoded no more once it has ended the program `MAX_CRASHES` times alone. While something is noted
    no other source decodes, and before a record that is alone what sinks have is waited for: a death is then
    that record's, or that of who killed the program in that millisecond.

    The notes are files that are not forced to the disk: they outlive the program, which is all that dies here.
    """

    def __init__(self, path: Path | None, engine: Engine[F], rejects: Rejects[F], source: str, turn: threading.Lock) -> None:
        self._path = path
        self._engine = engine
        self._rejects = rejects
        self._source = source
        self._turn = turn
        found = _load_notes(path)
        self._watches = found.running
        self._notes = found.count_crash()
        self._by = MAIN_READER
        self._died = False

    def filter_poison_records(self, decoder: Decoder) -> Decoder:
        """The decoder, without the records that it is not to get. Asks the dead letters, if there may be such. A record that
        was replayed or forgotten is decoded again."""
        notes = self._notes
        if not notes.poison_records and not notes.rejected:
            return decoder
        letters = self._rejects.list_crashed(self._source)
        known = {(letter.topic, letter.partition, letter.offset): letter.is_open for letter in letters}
        condemned = tuple(place for place in notes.poison_records if place not in known)
        spared = {*condemned, *(place for place, is_open in known.items() if is_open)}
        self._notes = replace(notes, poison_records=condemned, rejected=bool(spared))
        return filter_poison_records(decoder, sorted(spared))

    def begin_run(self) -> None:
        """A run begins. EnvironmentProblem when that cannot be noted."""
        suspect = self._notes.suspect
        for place in self._notes.poison_records:
            log.error(
                "a record ends the program, and is decoded no more", source=self._source, record="-".join(map(str, place))
            )
        if self._watches:
            told = {"span": suspect.span.to_json(), "deaths": suspect.deaths} if suspect else {}
            log.warning("the last run did not end by itself", source=self._source, **told)
        self._save_notes(replace(self._notes, running=True, decoding=None))

    def end_run(self) -> None:
        """It has ended by itself, whatever the reason."""
        if not self._died:
            self._save_notes(replace(self._notes, running=False, decoding=None, suspect=None))

    def split_batch(self, batch: Batch[F], by: str, quiet: Callable[[], None]) -> Iterator[Batch[F]]:
        """The batch, or the pieces in which it is to go its way, one after the other. `quiet` waits until nobody else does
        anything."""
        self._by = by
        suspect = self._notes.suspect
        if suspect is None or suspect.reader != by:
            yield batch
            return
        for span in split_span(batch.span, suspect.span):
            if SuspectedSpan(_drop_empty(span), by).record_position is not None:
                quiet()
            yield self._cut_batch(batch, span)
            self._clear_suspicion(span)

    def _cut_batch(self, batch: Batch[F], span: Span) -> Batch[F]:
        if span == batch.span:
            return batch
        frame = self._engine.within(batch.frame, span)
        records = self._engine.count(frame)
        return replace(batch, frame=frame, span=span, records=records, size=batch.size * records // max(1, batch.records))

    def _clear_suspicion(self, span: Span) -> None:
        """The span was decoded, so nothing in it is what ended the program."""
        suspect = self._notes.suspect
        if suspect is not None:
            left = suspect.span.after(span.end)
            left = left if left else Span(Position(), Position())
            # What is left of it ended nothing yet by itself.
            changed = replace(suspect, span=left, deaths=suspect.deaths if left == suspect.span else 0)
            self._notes = replace(self._notes, suspect=changed if left.end else None)

    @contextmanager
    def note_decoding(self, span: Span) -> Iterator[None]:
        """While records of that span are decoded, and nothing else is done."""
        noted = replace(self._notes, decoding=SuspectedSpan(_drop_empty(span), self._by))
        try:
            if not self._watches:
                yield
                return
            with self._turn:
                self._save_notes(noted)
                try:
                    yield
                finally:
                    self._save_notes(replace(noted, decoding=None))
        except DecoderDied:
            # It ran elsewhere, so that this program is still there; what is noted is true all the same.
            self._died = True
            self._save_notes(noted)
            raise

    def _save_notes(self, notes: CrashNotes) -> None:
        self._notes = notes
        if self._path is None:
            return
        try:
            make_folder(self._path.parent)
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(_to_json(notes)))
            new.replace(self._path)
        except OSError as error:
            raise EnvironmentProblem(
                f"{self._path.parent} cannot be written ({error.strerror})",
                next_step="Make the folder named by `state` writable.",
            ) from error


def split_span(span: Span, suspected: Span) -> Sequence[Span]:
    """A span in pieces that touch, in the order in which they may be taken: what lies before `suspected`, `SPLITS` pieces of
    each partition of that, and the rest. Other partitions come last: a record there that ends the program too would be
    suspected in its stead, and neither ever often enough. Partitions in which the span is empty go with the first."""
    firsts, lasts = {**span.start, **suspected.start}, {**span.start, **suspected.end}
    begins = {p: min(max(firsts[p], span.start[p]), e) for p, e in span.end.items()}
    ends = {p: max(begins[p], min(lasts[p], e)) for p, e in span.end.items()}
    pieces = [_make_span({p: (span.start[p], begins[p]) for p in span.end})]
    for p, begin in begins.items():
        width = max(1, -(-(ends[p] - begin) // SPLITS))
        pieces += [_make_span({p: (at, min(at + width, ends[p]))}) for at in range(begin, ends[p], width)]
    pieces.append(_make_span({p: (ends[p], e) for p, e in span.end.items()}))
    found = [piece for piece in pieces if piece]
    empty = span.only(p for p, e in span.end.items() if span.start[p] == e)
    return [empty.then(found[0]), *found[1:]] if found else [span]


def _drop_empty(span: Span) -> Span:
    """The span without partitions in which it is empty."""
    return span.only(p for p, end in span.end.items() if span.start[p] < end)


def _make_span(ranges: dict[TopicPartition, tuple[int, int]]) -> Span:
    left = {p: (start, end) for p, (start, end) in ranges.items() if start < end}
    return Span(Position({p: start for p, (start, _) in left.items()}), Position({p: end for p, (_, end) in left.items()}))


def _to_json(notes: CrashNotes) -> dict[str, Any]:
    def span_to_json(suspect: SuspectedSpan | None) -> Any:
        return suspect and {"span": suspect.span.to_json(), "by": suspect.reader, "deaths": suspect.deaths}

    return {
        "running": notes.running,
        "decoding": span_to_json(notes.decoding),
        "suspect": span_to_json(notes.suspect),
        "condemned": notes.poison_records,
        "rejected": notes.rejected,
    }


def _load_notes(path: Path | None) -> CrashNotes:
    """What was noted last. A file that cannot be read says as much as none: a machine that failed may leave one behind."""
    try:
        data = json.loads(path.read_bytes()) if path is not None else {}
        decoding, suspect = (_from_json(data.get(name)) for name in ("decoding", "suspect"))
        condemned = tuple((str(t), int(p), int(o)) for t, p, o in data.get("condemned", ()))
        return CrashNotes(bool(data.get("running")), decoding, suspect, condemned, bool(data.get("rejected")))
    except FileNotFoundError:
        return CrashNotes()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("notes about earlier runs cannot be read", path=str(path), error=type(error).__name__)
        return CrashNotes(running=True, rejected=True)


def _from_json(data: Any) -> SuspectedSpan | None:
    return SuspectedSpan(Span.from_json(data["span"]), data["by"], int(data["deaths"])) if data else None
