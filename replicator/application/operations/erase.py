"""Forgetting one key of a table: first it is on the erasure list, then it is taken out of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from replicator.application.quarantine.erasure_filter import filter_erased
from replicator.application.quarantine.erasure_list import ErasureList
from replicator.domain.erasures import Erasure, ErasureHashes, find_keys
from replicator.domain.projection import Projection
from replicator.ports.dead_letters import DeadLetters, KeepsVersions
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Lane
from replicator.ports.sink import Erases, ErasesRecords

from .refresh import ProjectionRefresher, RefreshResult
from .retry_dead_letters import to_raw_frame

DEAD_LETTERS = "dead letters"
SLICE_ROWS = 500
"""Dead letters that are looked at at once."""


@dataclass(frozen=True)
class ErasureTargets:
    """Where rows of a table are: its targets, the event logs of its source, and the dead letters."""

    targets: Sequence[tuple[Lane, Erases]]
    logs: Sequence[tuple[Lane, ErasesRecords]]
    dead_letters: DeadLetters


@dataclass
class ErasureOutcome:
    """What became of it. `removed`: how many rows or records, by place. `versions`: what still holds them, for people.
    `linked`: other keys that the row had before or got, as texts. `refreshed`: tables that are computed from the targets."""

    removed: dict[str, int] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    linked: set[tuple[str, ...]] = field(default_factory=set)
    refreshed: list[RefreshResult] = field(default_factory=list)


class ErasureOperation:
    """One key, of which `texts` says the values in clear; nothing of them is written down.

    Killed anywhere it may be begun again, and goes on: from the first step on records of the key are withheld, and taking
    out what is not there any more does nothing.
    """

    def __init__(
        self, erasures: ErasureList, decoder: Decoder, targets: ErasureTargets, report: Callable[[str], None]
    ) -> None:
        self._list = erasures
        self._decoder = decoder
        self._places = targets
        self._tell = report

    def run(self, erasure: Erasure, texts: Sequence[str], *, end_versions: bool = False) -> ErasureOutcome:
        """Forget the key of `erasure`, whose hash is not set yet. With `end_versions` nothing can be read in older
        versions of what held it either."""
        hashes = self._list.open_hashes()
        found = self._find_existing(
            replace(erasure, hash=hashes.hash_key(erasure.source, erasure.table, erasure.columns, texts))
        )
        self._list.put_erasure(hashes, found)
        done, looking = ErasureOutcome(), _RecordSearch(self._decoder, hashes, found)
        records = self._find_records(looking)
        letters = self._find_dead_letters(looking)
        if looking.messages:  # Of what cannot be decoded these tell.
            records = self._find_records(looking)
        found = replace(found, messages=found.messages | looking.messages)
        self._list.put_erasure(hashes, found)
        self._erase_everywhere(done, records, letters, dict(zip(erasure.columns, texts, strict=True)))
        if end_versions:
            self._end_old_versions(done)
        done.linked = looking.linked
        self._list.put_erasure(hashes, replace(found, removed=_add_counts(found.removed, done.removed)))
        return done

    def _find_records(self, looking: _RecordSearch) -> dict[str, list[tuple[str, int, int]]]:
        return {lane.id: looking.find_positions(sink.records(lane), self._tell) for lane, sink in self._places.logs}

    def _find_existing(self, erasure: Erasure) -> Erasure:
        """As it was when the key was forgotten first."""
        known = self._list.load()
        before = next((one for one in (known.erasures if known else ()) if one.identity == erasure.identity), None)
        return erasure if before is None else replace(before, topics=before.topics | erasure.topics)

    def _find_dead_letters(self, looking: _RecordSearch) -> list[Any]:
        """Those of the key. First those that can be decoded: they tell under which keys of messages the others came."""
        every = [o for o in self._places.dead_letters.read() if o.source in ("", looking.erasure.source)]
        pieces = [every[start : start + SLICE_ROWS] for start in range(0, len(every), SLICE_ROWS)]
        for piece in pieces:
            looking.find_matches(to_raw_frame(piece))
        looking.refresh_keys()
        hits = (hit for piece in pieces for hit in looking.find_matches(to_raw_frame(piece)))
        return [letter for letter, hit in zip(every, hits, strict=True) if hit]

    def _erase_everywhere(
        self,
        done: ErasureOutcome,
        records: Mapping[str, Sequence[tuple[str, int, int]]],
        letters: list[Any],
        key: dict[str, str],
    ) -> None:
        for lane, log in self._places.logs:
            done.versions.append(log.empty(lane, records[lane.id]))
            done.removed[lane.sink] = len(records[lane.id])
        self._places.dead_letters.remove(letters)
        done.removed[DEAD_LETTERS] = len(letters)
        if isinstance(self._places.dead_letters, KeepsVersions):
            done.versions.append(self._places.dead_letters.versions())
        for lane, sink in self._places.targets:
            erased = sink.erase(lane, key)
            done.removed[lane.id] = erased.rows + erased.side_rows
            done.versions.append(erased.versions)
        done.versions = list(filter(None, done.versions))

    def _end_old_versions(self, done: ErasureOutcome) -> None:
        left = [log.end_versions(lane) for lane, log in self._places.logs]
        left += [sink.end_versions(lane) for lane, sink in self._places.targets]
        if isinstance(self._places.dead_letters, KeepsVersions):
            left.append(self._places.dead_letters.end_versions())
        done.versions = list(filter(None, left))


def refresh_projections(
    refreshing: ProjectionRefresher, projections: Sequence[Projection], done: ErasureOutcome, *, end_versions: bool
) -> None:
    """Have tables that are computed from the targets hold nothing of the key either, as far as their queries take it from
    there; may be repeated."""
    for one in projections:
        done.refreshed.append(refreshing.refresh(one))
        held = refreshing.projector.end_versions if end_versions else refreshing.projector.versions
        done.versions += filter(None, [held(one)])


class _RecordSearch:
    """Finds records of the key, and remembers under which keys of messages they came."""

    def __init__(self, decoder: Decoder, hashes: ErasureHashes, erasure: Erasure) -> None:
        self._decoder, self._hashes = decoder, hashes
        self.erasure = erasure
        self.messages: set[str] = set()
        self.linked: set[tuple[str, ...]] = set()
        self.refresh_keys()

    def refresh_keys(self) -> None:
        """Look for what is known by now."""
        now = replace(self.erasure, messages=self.erasure.messages | self.messages)
        self._withholding: Any = filter_erased(self._decoder, self._hashes, [now])

    def find_matches(self, raw: pa.Table) -> list[bool]:
        """For each record of a raw frame whether it is of the key."""
        gone = self._withholding.find_erased(raw)
        if gone is None:
            return [False] * raw.num_rows
        found = raw.filter(gone)
        self.linked |= self._withholding.list_other_keys(found)
        for topic, key in zip(found["topic"].to_pylist(), found["key"].to_pylist(), strict=True):
            if key is not None and not self._is_plain(key):
                self.messages.add(self._hashes.hash_message(topic, key))
        return [bool(hit) for hit in gone.to_pylist()]

    def _is_plain(self, key: bytes) -> bool:
        """Whether it says by itself of which key the record is; where that was another one it must not count."""
        try:
            return any(find_keys(self.erasure.columns, msgspec.json.decode(key)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False

    def find_positions(self, frames: Iterable[pa.Table], tell: Callable[[str], None]) -> list[tuple[str, int, int]]:
        """Where they are."""
        found, seen = [], 0
        for raw in frames:
            hits = pa.array(self.find_matches(raw), pa.bool_())
            at = raw.filter(hits)
            found += list(zip(*(at[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))
            if (seen + raw.num_rows) // 1_000_000 > seen // 1_000_000:
                tell(f"{seen + raw.num_rows:,} records of the event log read, {len(found):,} of the key")
            seen += raw.num_rows
        return found


def _add_counts(before: Mapping[str, int] | None, now: Mapping[str, int]) -> dict[str, int]:
    """Forgotten again, what was removed then counts too."""
    known = before or {}
    return {place: known.get(place, 0) + now.get(place, 0) for place in {**known, **now}}
