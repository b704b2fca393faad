"""Erases one key of a table: adds it to the erasure list first, then removes it everywhere."""

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
"""Dead letters that are searched at once."""


@dataclass(frozen=True)
class ErasureTargets:
    """Everything with rows of a table: its targets, the event logs of its source, and the dead letters."""

    targets: Sequence[tuple[Lane, Erases]]
    logs: Sequence[tuple[Lane, ErasesRecords]]
    dead_letters: DeadLetters


@dataclass
class ErasureOutcome:
    """The result of an erasure.

    - `removed`: number of rows or records, by target or store. `versions`: descriptions of older versions that
      still hold them.
    - `linked`: other keys that the row had before or later, as texts.
    - `refreshed`: tables that are computed from the targets.
    """

    removed: dict[str, int] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    linked: set[tuple[str, ...]] = field(default_factory=set)
    refreshed: list[RefreshResult] = field(default_factory=list)


class ErasureOperation:
    """Erases one key. Its values in clear text (`texts`) are never stored.

    After a kill at any point it can start again and resumes. From the first step on, later records of the key are
    dropped. A removal of rows that are already gone does nothing.
    """

    def __init__(
        self, erasures: ErasureList, decoder: Decoder, targets: ErasureTargets, report: Callable[[str], None]
    ) -> None:
        self._list = erasures
        self._decoder = decoder
        self._places = targets
        self._tell = report

    def run(self, erasure: Erasure, texts: Sequence[str], *, end_versions: bool = False) -> ErasureOutcome:
        """Erase the key of `erasure`, whose hash is not set yet. With `end_versions`, older versions become
        unreadable too."""
        hashes = self._list.open_hashes()
        found = self._find_existing(
            replace(erasure, hash=hashes.hash_key(erasure.source, erasure.table, erasure.columns, texts))
        )
        self._list.put_erasure(hashes, found)
        done, looking = ErasureOutcome(), _RecordSearch(self._decoder, hashes, found)
        records = self._find_records(looking)
        letters = self._find_dead_letters(looking)
        if looking.messages:  # These message keys identify records that cannot be decoded.
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
        """The erasure as stored when the key was first erased."""
        known = self._list.load()
        before = next((one for one in (known.erasures if known else ()) if one.identity == erasure.identity), None)
        return erasure if before is None else replace(before, topics=before.topics | erasure.topics)

    def _find_dead_letters(self, looking: _RecordSearch) -> list[Any]:
        """The dead letters of the key. The decodable ones are first: their message keys identify the others."""
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
    """Refresh the tables that are computed from the targets, so that they have nothing of the key from there. Safe
    to repeat."""
    for one in projections:
        done.refreshed.append(refreshing.refresh(one))
        held = refreshing.projector.end_versions if end_versions else refreshing.projector.versions
        done.versions += filter(None, [held(one)])


class _RecordSearch:
    """Finds records of the key, and collects their message keys."""

    def __init__(self, decoder: Decoder, hashes: ErasureHashes, erasure: Erasure) -> None:
        self._decoder, self._hashes = decoder, hashes
        self.erasure = erasure
        self.messages: set[str] = set()
        self.linked: set[tuple[str, ...]] = set()
        self.refresh_keys()

    def refresh_keys(self) -> None:
        """Search for the message keys found so far, too."""
        now = replace(self.erasure, messages=self.erasure.messages | self.messages)
        self._withholding: Any = filter_erased(self._decoder, self._hashes, [now])

    def find_matches(self, raw: pa.Table) -> list[bool]:
        """One boolean per record of a raw frame: true if the record belongs to the key."""
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
        """True if the message key itself contains a row key. If that is another key, the record must not count."""
        try:
            return any(find_keys(self.erasure.columns, msgspec.json.decode(key)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False

    def find_positions(self, frames: Iterable[pa.Table], tell: Callable[[str], None]) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of the records of the key."""
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
    """The sums of both. A repeated erasure includes the earlier counts."""
    known = before or {}
    return {place: known.get(place, 0) + now.get(place, 0) for place in {**known, **now}}
