"""Forgetting one key of a table: first it is on the erasure list, then it is taken out of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.erasures import Erasure, Hashes, among
from replicator.domain.projections import Projection
from replicator.ports.dead_letters import DeadLetters, KeepsVersions
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Lane
from replicator.ports.sink import Erases, ErasesRecords

from .erasures import ErasureList
from .refreshing import Refreshed, Refreshing
from .replay import records_of
from .withholding import withholding

LETTERS = "dead letters"
PIECE = 500
"""Dead letters that are looked at at once."""


@dataclass(frozen=True)
class Places:
    """Where rows of a table are: its targets, the event logs of its source, and the dead letters."""

    targets: Sequence[tuple[Lane, Erases]]
    logs: Sequence[tuple[Lane, ErasesRecords]]
    letters: DeadLetters


@dataclass
class Outcome:
    """What became of it. `removed`: how many rows or records, by place. `versions`: what still holds them, for people.
    `linked`: other keys that the row had before or got, as texts. `refreshed`: tables that are computed from the targets."""

    removed: dict[str, int] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    linked: set[tuple[str, ...]] = field(default_factory=set)
    refreshed: list[Refreshed] = field(default_factory=list)


class Forgetting:
    """One key, of which `texts` says the values in clear; nothing of them is written down.

    Killed anywhere it may be begun again, and goes on: from the first step on records of the key are withheld, and taking
    out what is not there any more does nothing.
    """

    def __init__(self, erasures: ErasureList, decoder: Decoder, places: Places, tell: Callable[[str], None]) -> None:
        self._list = erasures
        self._decoder = decoder
        self._places = places
        self._tell = tell

    def run(self, asked: Erasure, texts: Sequence[str], *, end_versions: bool = False) -> Outcome:
        """Forget the key of `asked`, whose hash is not set yet. With `end_versions` nothing can be read in older versions of
        what held it either."""
        hashes = self._list.begun()
        found = self._begun(replace(asked, hash=hashes.of_key(asked.source, asked.table, asked.columns, texts)))
        self._list.put(hashes, found)
        done, looking = Outcome(), _Looking(self._decoder, hashes, found)
        records = self._records(looking)
        letters = self._letters(looking)
        if looking.messages:  # Of what cannot be decoded these tell.
            records = self._records(looking)
        found = replace(found, messages=found.messages | looking.messages)
        self._list.put(hashes, found)
        self._take_out(done, records, letters, dict(zip(asked.columns, texts, strict=True)))
        if end_versions:
            self._end_versions(done)
        done.linked = looking.linked
        self._list.put(hashes, replace(found, removed=_sum(found.removed, done.removed)))
        return done

    def _records(self, looking: _Looking) -> dict[str, list[tuple[str, int, int]]]:
        return {lane.id: looking.places(sink.records(lane), self._tell) for lane, sink in self._places.logs}

    def _begun(self, asked: Erasure) -> Erasure:
        """As it was when the key was forgotten first."""
        known = self._list.load()
        before = next((one for one in (known.erasures if known else ()) if one.identity == asked.identity), None)
        return asked if before is None else replace(before, topics=before.topics | asked.topics)

    def _letters(self, looking: _Looking) -> list[Any]:
        """Those of the key. First those that can be decoded: they tell under which keys of messages the others came."""
        every = [o for o in self._places.letters.read() if o.source in ("", looking.erasure.source)]
        pieces = [every[start : start + PIECE] for start in range(0, len(every), PIECE)]
        for piece in pieces:
            looking.hits(records_of(piece))
        looking.renew()
        hits = (hit for piece in pieces for hit in looking.hits(records_of(piece)))
        return [letter for letter, hit in zip(every, hits, strict=True) if hit]

    def _take_out(
        self, done: Outcome, records: Mapping[str, Sequence[tuple[str, int, int]]], letters: list[Any], key: dict[str, str]
    ) -> None:
        for lane, log in self._places.logs:
            done.versions.append(log.empty(lane, records[lane.id]))
            done.removed[lane.sink] = len(records[lane.id])
        self._places.letters.remove(letters)
        done.removed[LETTERS] = len(letters)
        if isinstance(self._places.letters, KeepsVersions):
            done.versions.append(self._places.letters.versions())
        for lane, sink in self._places.targets:
            erased = sink.erase(lane, key)
            done.removed[lane.id] = erased.rows + erased.beside
            done.versions.append(erased.versions)
        done.versions = list(filter(None, done.versions))

    def _end_versions(self, done: Outcome) -> None:
        left = [log.end_versions(lane) for lane, log in self._places.logs]
        left += [sink.end_versions(lane) for lane, sink in self._places.targets]
        if isinstance(self._places.letters, KeepsVersions):
            left.append(self._places.letters.end_versions())
        done.versions = list(filter(None, left))


def refresh(refreshing: Refreshing, projections: Sequence[Projection], done: Outcome, *, end_versions: bool) -> None:
    """Have tables that are computed from the targets hold nothing of the key either, as far as their queries take it from
    there; may be repeated."""
    for one in projections:
        done.refreshed.append(refreshing.refresh(one))
        held = refreshing.projector.end_versions if end_versions else refreshing.projector.versions
        done.versions += filter(None, [held(one)])


class _Looking:
    """Finds records of the key, and remembers under which keys of messages they came."""

    def __init__(self, decoder: Decoder, hashes: Hashes, erasure: Erasure) -> None:
        self._decoder, self._hashes = decoder, hashes
        self.erasure = erasure
        self.messages: set[str] = set()
        self.linked: set[tuple[str, ...]] = set()
        self.renew()

    def renew(self) -> None:
        """Look for what is known by now."""
        now = replace(self.erasure, messages=self.erasure.messages | self.messages)
        self._withholding: Any = withholding(self._decoder, self._hashes, [now])

    def hits(self, raw: pa.Table) -> list[bool]:
        """For each record of a raw frame whether it is of the key."""
        gone = self._withholding.withheld(raw)
        if gone is None:
            return [False] * raw.num_rows
        found = raw.filter(gone)
        self.linked |= self._withholding.keys(found)
        for topic, key in zip(found["topic"].to_pylist(), found["key"].to_pylist(), strict=True):
            if key is not None and not self._is_plain(key):
                self.messages.add(self._hashes.of_message(topic, key))
        return [bool(hit) for hit in gone.to_pylist()]

    def _is_plain(self, key: bytes) -> bool:
        """Whether it says by itself of which key the record is; where that was another one it must not count."""
        try:
            return any(among(self.erasure.columns, msgspec.json.decode(key)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False

    def places(self, frames: Iterable[pa.Table], tell: Callable[[str], None]) -> list[tuple[str, int, int]]:
        """Where they are."""
        found, seen = [], 0
        for raw in frames:
            hits = pa.array(self.hits(raw), pa.bool_())
            at = raw.filter(hits)
            found += list(zip(*(at[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))
            if (seen + raw.num_rows) // 1_000_000 > seen // 1_000_000:
                tell(f"{seen + raw.num_rows:,} records of the event log read, {len(found):,} of the key")
            seen += raw.num_rows
        return found


def _sum(before: Mapping[str, int] | None, now: Mapping[str, int]) -> dict[str, int]:
    """Forgotten again, what was removed then counts too."""
    known = before or {}
    return {place: known.get(place, 0) + now.get(place, 0) for place in {**known, **now}}
