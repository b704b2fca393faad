"""Poison records: finds records that crash the process, by splitting the batch in which it crashed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from replicator.domain.errors import DecoderDied, EnvironmentProblem, Reject, RejectCode
from replicator.domain.position import EMPTY_SPAN, RecordPosition, Span, TopicPartition
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Connector, TransactionMark
from replicator.local_files import make_folder
from replicator.ports.decoder import Decoder, DecoderFeatures
from replicator.ports.engine import Frames
from replicator.ports.frames import Batch, F
from replicator.ports.stores import DeadLetter, DeadLetterFilter, DeadLetters

from .rejects import Rejects

# A decoder wrapper that rejects poison records without decoding them.


POISON_REASON = str(
    Reject(RejectCode.CRASHED, "the program crashed each time it decoded this record, so it is not decoded any more")
)
UNREADABLE = b"\xff"


class PoisonRecordFilter:
    """`ports.decoder.Decoder` over another one.

    Records at the given positions are rejects, and the other one never gets them.
    """

    def __init__(self, decoder: Decoder, positions: Iterable[RecordPosition]) -> None:
        self._decoder = decoder
        self._offsets: dict[TopicPartition, list[int]] = {}
        for topic, partition, offset in sorted(positions):
            self._offsets.setdefault(TopicPartition(topic, partition), []).append(offset)

    @property
    def features(self) -> DecoderFeatures:
        """The features of the other decoder, but for printing: that would read poison records."""
        features = self._decoder.features
        return DecoderFeatures(
            mask_records=self.mask_records if features.mask_records is not None else None,
            find_erased=self.find_erased if features.find_erased is not None else None,
            read_marks=self.read_marks if features.read_marks is not None else None,
            find_connector=self.find_connector if features.find_connector is not None else None,
        )

    def route(self, raw: pa.Table) -> pa.Table:
        return self._decode_others(raw, self._decoder.route)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """The records have passed `route`, as for `decode`: none is a poison record."""
        return self._decoder.learn(sample, table, fingerprint)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        return self._decoder.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return self._decode_others(raw, self._decoder.envelope)

    def find_erased(self, raw: pa.Table) -> pa.Array | None:
        """A poison record belongs to no key."""
        find_erased = self._decoder.features.find_erased
        poison = self.find_poison_records(raw)
        if find_erased is None or poison is None:
            return None if find_erased is None else find_erased(raw)
        erased = find_erased(raw.filter(pc.invert(poison)))
        return None if erased is None else pc.fill_null(erased.take(_index_others(poison)), False)

    def read_marks(self, raw: pa.Table) -> Sequence[TransactionMark]:
        read_marks = self._decoder.features.read_marks
        return () if read_marks is None else read_marks(self._remove_poison_records(raw))

    def find_connector(self, raw: pa.Table) -> Connector | None:
        find_connector = self._decoder.features.find_connector
        return None if find_connector is None else find_connector(self._remove_poison_records(raw))

    def mask_records(self, raw: pa.Table) -> pa.Table:
        """A poison record is treated like one that cannot be read: kept, or withheld."""
        mask_records = self._decoder.features.mask_records
        poison = self.find_poison_records(raw)
        if mask_records is None or poison is None:
            return raw if mask_records is None else mask_records(raw)
        masked = mask_records(_hide_poison_records(raw, poison))
        unchanged = pc.and_(poison, pc.fill_null(pc.equal(masked["value"], UNREADABLE), False))
        at = pa.array(range(raw.num_rows), pa.int64())
        return pa.concat_tables([masked, raw]).take(pc.if_else(unchanged, pc.add(at, raw.num_rows), at))

    def _decode_others(self, raw: pa.Table, ask: Any) -> pa.Table:
        """The result of `ask`. A poison record only has an error, and the table that its topic or headers name, if any."""
        poison = self.find_poison_records(raw)
        if poison is None:
            return ask(raw)
        decoded = ask(_hide_poison_records(raw, poison))
        parts = {"error": POISON_REASON, "table": decoded["table"]}
        columns = [pc.if_else(poison, parts.get(f.name, pa.scalar(None, f.type)), decoded[f.name]) for f in decoded.schema]
        return pa.Table.from_arrays(columns, schema=decoded.schema)

    def find_poison_records(self, raw: pa.Table) -> pa.Array | None:
        """True for each poison record; None without any."""
        mask = pa.repeat(pa.scalar(False), raw.num_rows)
        for at, offsets in self._offsets.items():
            in_partition = pc.and_(pc.equal(raw["topic"], at.topic), pc.equal(raw["partition"], at.partition))
            hit = pc.and_(in_partition, pc.is_in(raw["offset"], pa.array(offsets, pa.int64())))
            mask = pc.or_(mask, hit.combine_chunks() if isinstance(hit, pa.ChunkedArray) else hit)
        return mask if pc.any(mask).as_py() else None

    def _remove_poison_records(self, raw: pa.Table) -> pa.Table:
        poison = self.find_poison_records(raw)
        return raw if poison is None else raw.filter(pc.invert(poison))


def filter_poison_records(decoder: Decoder, positions: Iterable[RecordPosition]) -> Decoder:
    """The decoder with a filter, or itself without `positions`."""
    positions = tuple(positions)
    return PoisonRecordFilter(decoder, positions) if positions else decoder


def _hide_poison_records(raw: pa.Table, poison: pa.Array) -> pa.Table:
    """The records, with keys and values that no format can read in place of those of poison records."""
    hidden = raw
    for name in ("key", "value"):
        texts = pc.if_else(poison, UNREADABLE, raw[name])
        hidden = hidden.set_column(raw.column_names.index(name), raw.schema.field(name), texts)
    return hidden


def _index_others(poison: pa.Array) -> pa.Array:
    """The index of each record among the others; null for poison records."""
    others = pc.cumulative_sum(pc.invert(poison).cast(pa.int64()))
    return pc.if_else(poison, None, pc.subtract(others, 1))


log = structlog.get_logger(__name__)

# Crashes are counted instead of decoding suspects in a child process: that needs a second decoder and engine, and
# a child that the operator or the kernel killed proves nothing either.
MAX_CRASHES = 3
"""Crashes of a record, alone in its batch, before it is not decoded any more."""
SPLITS = 16
"""The number of slices per split of a suspected span.

A batch of 50,000 records needs four crashes to get to one record.
"""
MAIN_READER = ""
"""The reader of the main stream. Lanes that catch up are readers with their own ids."""


@dataclass(frozen=True, slots=True)
class SuspectedSpan:
    """A span that this reader decoded when the process crashed, `deaths` times in a row."""

    span: Span
    reader: str
    deaths: int = 1

    def to_json(self) -> dict[str, Any]:
        """The span as JSON."""
        return {"span": self.span.to_json(), "by": self.reader, "deaths": self.deaths}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SuspectedSpan:
        """A span from the result of `to_json`."""
        return cls(Span.from_json(data["span"]), data["by"], int(data["deaths"]))

    @property
    def record_position(self) -> RecordPosition | None:
        """The position of the record, if the span holds exactly one."""
        if len(self.span.end) != 1:
            return None
        ((at, end),) = self.span.end.items()
        return (*at, self.span.start[at]) if end - self.span.start[at] == 1 else None


@dataclass(frozen=True, slots=True)
class CrashNotes:
    """Notes that outlive the process.

    - `running`: a run has started, and not ended.
    - `decoding`: the span being decoded, if that is noted.
    - `suspect`: the span that may hold a poison record.
    - `poison_records`: records that are to become dead letters.
    - `rejected`: some became dead letters, which may still be open.
    """

    running: bool = False
    decoding: SuspectedSpan | None = None
    suspect: SuspectedSpan | None = None
    poison_records: tuple[RecordPosition, ...] = ()
    rejected: bool = False

    def count_crash(self) -> CrashNotes:
        """The notes after a run that may have crashed."""
        died, suspect = self.decoding, self.suspect
        if not self.running or died is None:
            return self
        if suspect is not None and (suspect.span, suspect.reader) == (died.span, died.reader):
            died = replace(died, deaths=suspect.deaths + 1)
        if died.record_position is not None and died.deaths >= MAX_CRASHES:
            return CrashNotes(True, None, None, (*self.poison_records, died.record_position), True)
        return replace(self, decoding=None, suspect=died)


class PoisonRecordFinder(Generic[F]):
    """Finds the poison records of one source. The thread of the source uses it; other threads use
    `filter_poison_records` only.

    How it works:
    - A run notes its start and its end.
    - After a run without an end, each span is noted before it is decoded.
    - If the process crashes again, the noted span is split. Its slices are decoded one by one, and the next
      crash splits again, until one record is left.
    - A record that has crashed the process `MAX_CRASHES` times alone is not decoded any more.

    While a span is noted, no other source decodes. Before a single record the sinks finish their writes. So the
    crash is caused by that record, unless the process is killed from outside in that millisecond.

    The files are not forced to disk: they survive a crash of the process, but not always of the machine.
    """

    def __init__(self, path: Path | None, frames: Frames[F], rejects: Rejects[F], source: str, turn: threading.Lock) -> None:
        self._path = path
        self._frames = frames
        self._rejects = rejects
        self._source = source
        self._turn = turn
        notes = _load_notes(path)
        self._watches = notes.running
        self._notes = notes.count_crash()
        self._by = MAIN_READER
        self._died = False

    def filter_poison_records(self, decoder: Decoder) -> Decoder:
        """The decoder, without the poison records of the notes and of open dead letters.

        Reads the dead letters only if the notes mention any. A record that was retried or erased is decoded
        again.
        """
        notes = self._notes
        if not notes.poison_records and not notes.rejected:
            return decoder
        condemned, poison = _find_poison_records(notes, self._rejects.list_crashed(self._source))
        self._notes = replace(notes, poison_records=condemned, rejected=bool(poison))
        return filter_poison_records(decoder, sorted(poison))

    def begin_run(self) -> None:
        """Note the start of a run. EnvironmentProblem if the note cannot be written."""
        suspect = self._notes.suspect
        for position in self._notes.poison_records:
            log.error(
                "a record crashes the program, and is not decoded any more",
                source=self._source,
                record="-".join(map(str, position)),
            )
        if self._watches:
            suspected = {"span": suspect.span.to_json(), "deaths": suspect.deaths} if suspect else {}
            log.warning("the last run was killed or crashed", source=self._source, **suspected)
        self._save_notes(replace(self._notes, running=True, decoding=None))

    def end_run(self) -> None:
        """Note that the run has ended without a crash, for any reason."""
        if not self._died:
            self._save_notes(replace(self._notes, running=False, decoding=None, suspect=None))

    def split_batch(self, batch: Batch[F], by: str, quiet: Callable[[], None]) -> Iterator[Batch[F]]:
        """The batch, or the slices in which to decode it, one by one.

        `quiet`: waits until the sinks have finished their writes.
        """
        self._by = by
        suspect = self._notes.suspect
        if suspect is None or suspect.reader != by:
            yield batch
            return
        for span in split_span(batch.span, suspect.span):
            if SuspectedSpan(Span.between(span.start, span.end), by).record_position is not None:
                quiet()
            if span == batch.span:
                yield batch
            else:
                frame, _ = self._frames.split(batch.frame, span)
                records = self._frames.count(frame)
                size = batch.size * records // max(1, batch.records)
                yield replace(batch, frame=frame, span=span, records=records, size=size)
            # The span was decoded: none of its records is poison.
            suspect = self._notes.suspect
            if suspect is not None:
                rest = suspect.span.after(span.end) or EMPTY_SPAN
                # The rest of the span has not crashed by itself yet.
                changed = replace(suspect, span=rest, deaths=suspect.deaths if rest == suspect.span else 0)
                self._notes = replace(self._notes, suspect=changed if rest.end else None)

    @contextmanager
    def note_decoding(self, span: Span) -> Iterator[None]:
        """Note the span while the block decodes its records, and does nothing else."""
        notes = replace(self._notes, decoding=SuspectedSpan(Span.between(span.start, span.end), self._by))
        try:
            if not self._watches:
                yield
                return
            with self._turn:
                self._save_notes(notes)
                try:
                    yield
                finally:
                    self._save_notes(replace(notes, decoding=None))
        except DecoderDied:
            # The decoder crashed in another process; the note is just as true.
            self._died = True
            self._save_notes(notes)
            raise

    def _save_notes(self, notes: CrashNotes) -> None:
        self._notes = notes
        if self._path is None:
            return
        document = {
            "running": notes.running,
            "decoding": notes.decoding and notes.decoding.to_json(),
            "suspect": notes.suspect and notes.suspect.to_json(),
            "condemned": notes.poison_records,
            "rejected": notes.rejected,
        }
        try:
            make_folder(self._path.parent)
            # Not forced to disk, as `replace_file` does: a watched run writes this twice for each span.
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(document))
            new.replace(self._path)
        except OSError as error:
            raise EnvironmentProblem(
                f"{self._path.parent} cannot be written ({error.strerror})",
                next_step="Make the folder named by `state` writable.",
            ) from error


def load_poison_records(path: Path, source: str, open_letters: Callable[[], DeadLetters]) -> set[RecordPosition]:
    """The poison records of a source, from the notes of its stream at `path`, and from open dead letters.

    For readers of past records. As the stream, it reads the dead letters only if the notes mention any.
    """
    notes = _load_notes(path)
    if not notes.poison_records and not notes.rejected:
        return set()
    with closing(open_letters()) as store:
        letters = store.read(DeadLetterFilter(lane="", code=RejectCode.CRASHED))
    return _find_poison_records(notes, [letter for letter in letters if letter.source == source])[1]


def split_span(span: Span, suspected: Span) -> Sequence[Span]:
    """Slices of `span` that touch, in the order in which to decode them.

    First the slice before `suspected`, then `SPLITS` slices of each suspected partition, then the rest. Other
    partitions are last: a second poison record there would replace the suspect, and neither would ever reach
    `MAX_CRASHES`. Empty partitions are in the first slice.
    """
    firsts, lasts = {**span.start, **suspected.start}, {**span.start, **suspected.end}
    begins = {p: min(max(firsts[p], span.start[p]), e) for p, e in span.end.items()}
    ends = {p: max(begins[p], min(lasts[p], e)) for p, e in span.end.items()}
    pieces = [Span.between(span.start, begins)]
    for p, begin in begins.items():
        width = max(1, -(-(ends[p] - begin) // SPLITS))
        pieces += [Span.between({p: at}, {p: min(at + width, ends[p])}) for at in range(begin, ends[p], width)]
    pieces.append(Span.between(ends, span.end))
    nonempty = [piece for piece in pieces if piece]
    empty = span.only(p for p, e in span.end.items() if span.start[p] == e)
    return [empty.then(nonempty[0]), *nonempty[1:]] if nonempty else [span]


def _find_poison_records(
    notes: CrashNotes, letters: Iterable[DeadLetter]
) -> tuple[tuple[RecordPosition, ...], set[RecordPosition]]:
    """The records of the notes without a dead letter in `letters`, and all records that must not be decoded."""
    stored = {letter.record_position: letter.is_open for letter in letters}
    condemned = tuple(position for position in notes.poison_records if position not in stored)
    return condemned, {*condemned, *(position for position, is_open in stored.items() if is_open)}


def _load_notes(path: Path | None) -> CrashNotes:
    """The last notes. An unreadable file counts as a crash with unknown span: a failed machine may leave one behind."""
    try:
        data = json.loads(path.read_bytes()) if path is not None else {}
        spans = [data.get(name) for name in ("decoding", "suspect")]
        decoding, suspect = (SuspectedSpan.from_json(span) if span else None for span in spans)
        condemned = tuple((str(t), int(p), int(o)) for t, p, o in data.get("condemned", ()))
        return CrashNotes(bool(data.get("running")), decoding, suspect, condemned, bool(data.get("rejected")))
    except FileNotFoundError:
        return CrashNotes()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("notes about earlier runs cannot be read", path=str(path), error=type(error).__name__)
        return CrashNotes(running=True, rejected=True)
