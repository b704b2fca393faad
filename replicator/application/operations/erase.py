"""`erase_row`: finds the row of a key, adds the key to the erasure list, and removes the row everywhere, while nothing
writes there."""

from __future__ import annotations

import getpass
import hmac
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec
import pyarrow as pa

from replicator.application.lane_registry import find_target_problem
from replicator.application.quarantine.erasure_filter import ErasureList, filter_erased
from replicator.application.quarantine.poison_records import filter_poison_records
from replicator.application.sink_features import read_schema_versions, require_feature
from replicator.domain.change import RAW_RECORD_POSITION
from replicator.domain.erasures import Erasure, ErasureHashes, find_keys, to_key_texts
from replicator.domain.errors import ConfigProblem, Fatal, RejectCode
from replicator.domain.plain_values import format_count
from replicator.domain.projection import Projection, list_dependents
from replicator.domain.table import Column, TableSpec
from replicator.ports.components import Components, TableRules
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Lane
from replicator.ports.runtime import ShowLine
from replicator.ports.sink import KeyErasure, RecordErasure, Sink
from replicator.ports.source import BACKFILL_TOPICS
from replicator.ports.stores import DeadLetter, DeadLetters, OlderVersions

from .change_history import parse_key
from .checkpoint import AS_OF_TARGET, CHECKPOINTS_FOLDER, STORES_NONE, CheckpointStore
from .dead_letters import to_raw_frame
from .diff_runs import remove_unfinished
from .rebuild import (
    CHECKPOINT_COPY_FOLDER,
    REJECTED_FOLDER,
    SPILL_FOLDER,
    can_rebuild,
    list_rebuild_folders,
    list_rebuilds,
    lock_instance,
    make_rebuild_lane,
)
from .refresh import ProjectionRefresher, RefreshResult

ListProjections = Callable[[], Sequence[Projection]]
T = TypeVar("T")
OpenRefresher = Callable[[], AbstractContextManager[ProjectionRefresher]]
HASH_PATTERN = re.compile(r"[0-9a-f]{64}\Z")
DEAD_LETTERS = "dead letters"
DAEMON_RUNS = (
    "would still apply records of the erased row",
    "Stop the daemon, repeat the command, and start the daemon again: it resumes.",
)
"""The danger of a running daemon, and the next step."""
SLICE_ROWS = 500
"""Dead letters that are searched at once."""


@dataclass
class ErasureOutcome:
    """The result of an erasure.

    - `removed`: number of rows or records, by target or store. `versions`: descriptions of older versions that
      still hold them.
    - `linked`: other keys that the row had before or later, as texts.
    - `refreshed`: tables that are computed from the targets.
    - `unclear`: records that may belong to the key, with the reason and the next step.
    """

    removed: dict[str, int] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    linked: set[tuple[str, ...]] = field(default_factory=set)
    refreshed: list[RefreshResult] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ErasureScope:
    """One row, and all its locations.

    - `texts`: the key in clear.
    - `targets`, `logs` (event logs), `dead_letters` (kind of the store), `projections` that read one of these.
    - `stays`: copies that this program cannot change, with the reason.
    """

    source: str
    table: str
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    targets: Sequence[Lane]
    logs: Sequence[Lane]
    dead_letters: str
    projections: Sequence[Projection]
    stays: Sequence[str]


def find_row(
    components: Components, list_projections: ListProjections, table: str, key: Sequence[str], source: str | None = None
) -> ErasureScope:
    """The row of `key` in `table` (its source name). `key`: one text per key column. `list_projections`: all.

    ConfigProblem for an unknown or ambiguous table, or one without a known key. Fenced while a process runs that
    writes its targets.
    """
    name = _find_source(components, table, source)
    rules = cast(TableRules, components.sources[name].rules_for(table))
    with lock_instance(components, *DAEMON_RUNS), ExitStack() as stack:
        for lane in rules.lanes:
            if not can_rebuild(components, lane):
                raise ConfigProblem(
                    f"events of {table} go to the event store, which never removes events ({lane.config_line}). Nothing was "
                    "removed",
                    next_step="To forget the event in all other places, remove that entry from the config first. Stored "
                    "events stay, so keep personal data out of events.",
                )
        targets = _list_targets(components, table, name)
        sinks = [(lane, _open_sink(components, lane, stack)) for lane in targets]
        for lane, sink in sinks:
            _require_erasure(sink.features.erasure, lane)
        spec = _find_schema(components, table, name, sinks)
        keyed = tuple(_list_key_texts(rules, spec, key))
        logs = components.sources[name].event_logs
        tables = [*(lane.id for lane in targets), *(lane.sink for lane in logs)]
        read, letters = list_dependents(list_projections(), tables), components.dead_letters.kind
        return ErasureScope(
            name, table, spec.keys, keyed, targets, logs, letters, read, list(_describe_remaining(components, table, name))
        )


def erase_row(
    components: Components, open_refresher: OpenRefresher, scope: ErasureScope, *, end_versions: bool, show_line: ShowLine
) -> ErasureOutcome:
    """Erase the row, permanently from the first step on. Fenced as `find_row`. Fatal, without any removal, if there are
    targets that are not in `scope`."""
    with lock_instance(components, *DAEMON_RUNS), ExitStack() as stack:
        new = [lane.id for lane in _list_targets(components, scope.table, scope.source) if lane not in scope.targets]
        if new:
            raise Fatal(
                f"{', '.join(new)} did not exist when the targets of {scope.table} were listed. Nothing was removed",
                next_step="Repeat the command: it includes the new target.",
            )
        targets: list[tuple[Lane, KeyErasure]] = [
            (lane, _require_erasure(_open_sink(components, lane, stack).features.erasure, lane)) for lane in scope.targets
        ]
        stores: list[DeadLetters] = [stack.enter_context(closing(components.open_dead_letters()))]
        for lane, copy, rejected in open_checkpoints(components, scope.table, scope.source, stack):
            targets.append((lane, copy))
            stores.append(rejected)
        for lane in scope.targets:
            remove_unfinished(components.folder, lane.id)
        for folder in list_rebuild_folders(components):
            # The checkpoint copy of a killed rebuild, which copies it again; its spill files, as it starts again.
            shutil.rmtree(folder / CHECKPOINT_COPY_FOLDER, ignore_errors=True)
            if (spilled := folder / components.pipeline / SPILL_FOLDER).exists():
                shutil.rmtree(spilled)
            if (folder / REJECTED_FOLDER).exists():  # Repeated, the rebuild would copy them into the dead letters.
                stores.append(stack.enter_context(closing(components.open_dead_letters(folder / REJECTED_FOLDER))))
        logs = [
            (lane, _require_erasure(_open_sink(components, lane, stack).features.record_erasure, lane))
            for lane in scope.logs
        ]
        topics = components.register.load(scope.source).topics.get(scope.table, frozenset()) | {
            BACKFILL_TOPICS + scope.table
        }
        erasure = Erasure(scope.source, scope.table, scope.columns, "", datetime.now(UTC), _get_user(), frozenset(topics))
        decoder = components.build_decoder(scope.source, with_erased=True)
        erasing = ErasureOperation(ErasureList(components.erasures), decoder, targets, logs, stores, show_line)
        outcome = erasing.run(erasure, scope.texts, end_versions=end_versions)
        if scope.projections:
            with open_refresher() as refreshing:
                refresh_projections(refreshing, scope.projections, outcome, end_versions=end_versions)
        return outcome


@dataclass(frozen=True)
class ErasureOperation:
    """Erases one key. Its values in clear text (`texts`) are never stored.

    - `targets`: those of the table. `logs`: the event logs of its source. `stores`: of dead letters.

    After a kill at any point it can start again and resumes. From the first step on, later records of the key are
    dropped. A removal of rows that are already gone does nothing.
    """

    erasures: ErasureList
    decoder: Decoder
    targets: Sequence[tuple[Lane, KeyErasure]]
    logs: Sequence[tuple[Lane, RecordErasure]]
    stores: Sequence[DeadLetters]
    show_line: ShowLine

    def run(self, erasure: Erasure, texts: Sequence[str], *, end_versions: bool = False) -> ErasureOutcome:
        """Erase the key of `erasure`, whose hash is not set yet. With `end_versions`, older versions become
        unreadable too."""
        hashes = self.erasures.open_hashes()
        stored = replace(erasure, hash=hashes.hash_key(erasure.source, erasure.table, erasure.columns, texts))
        entries = self.erasures.load()
        before = next((one for one in (entries.erasures if entries else ()) if one.identity == stored.identity), None)
        if before is not None:  # The key was erased before.
            stored = replace(before, topics=before.topics | erasure.topics)
        self.erasures.put_erasure(hashes, stored)
        every = [o for store in self.stores for o in store.read() if o.source in ("", erasure.source)]
        crashed = {o.record_position: o for o in every if o.code == RejectCode.CRASHED and o.is_open}
        outcome = ErasureOutcome()
        looking = _RecordSearch(filter_poison_records(self.decoder, crashed), hashes, stored)
        records = self._find_records(looking)
        # The dead letters of the key. The decodable ones are first: their message keys identify the others.
        pieces = [every[start : start + SLICE_ROWS] for start in range(0, len(every), SLICE_ROWS)]
        for piece in pieces:
            looking.find_matches(to_raw_frame(piece))
        looking.refresh_keys()
        hits = (hit for piece in pieces for hit in looking.find_matches(to_raw_frame(piece)))
        letters = [letter for letter, hit in zip(every, hits, strict=True) if hit]
        erased_positions = {letter.record_position for letter in letters}
        outcome.unclear = [
            f"record {one.event_id} may be of the row, but it is not decoded, because it crashes the program. Retry it with "
            f"a release that can decode it (`{one.retry}`), and repeat the command"
            for at, one in crashed.items()
            if at not in erased_positions and not looking.can_compare(one)
        ]
        if looking.messages:  # These message keys identify records that cannot be decoded.
            records = self._find_records(looking)
        stored = replace(stored, messages=stored.messages | looking.messages)
        self.erasures.put_erasure(hashes, stored)
        self._erase_everywhere(outcome, records, letters, dict(zip(erasure.columns, texts, strict=True)))
        if end_versions:
            ended = [log.end_versions(lane) for lane, log in self.logs]
            ended += [target.end_versions(lane) for lane, target in self.targets]
            ended.append(self._ask_stores(lambda one: one.end()))
            outcome.versions = list(filter(None, ended))
        outcome.linked = looking.linked
        earlier, now = stored.removed or {}, outcome.removed  # A repeated erasure includes the earlier counts.
        removed = {name: earlier.get(name, 0) + now.get(name, 0) for name in {**earlier, **now}}
        self.erasures.put_erasure(hashes, replace(stored, removed=removed))
        return outcome

    def _find_records(self, looking: _RecordSearch) -> dict[str, list[tuple[str, int, int]]]:
        return {lane.id: looking.find_positions(log.records(lane), self.show_line) for lane, log in self.logs}

    def _erase_everywhere(
        self,
        outcome: ErasureOutcome,
        records: Mapping[str, Sequence[tuple[str, int, int]]],
        letters: list[Any],
        key: dict[str, str],
    ) -> None:
        for lane, log in self.logs:
            outcome.versions.append(log.empty(lane, records[lane.id]))
            outcome.removed[lane.sink] = len(records[lane.id])
        for store in self.stores:
            store.remove(letters)
        outcome.removed[DEAD_LETTERS] = len(letters)
        outcome.versions.append(self._ask_stores(lambda one: one.describe()))
        for lane, erasure in self.targets:
            erased = erasure.erase(lane, key)
            outcome.removed[lane.id] = erased.rows + erased.side_rows
            outcome.versions.append(erased.versions)
        outcome.versions = list(filter(None, outcome.versions))

    def _ask_stores(self, ask: Callable[[OlderVersions], str]) -> str:
        """The answers about older versions of the dead letters, as one text."""
        versions = (store.features.versions for store in self.stores)
        return "; ".join(filter(None, (ask(one) for one in versions if one is not None)))


def refresh_projections(
    refreshing: ProjectionRefresher, projections: Sequence[Projection], outcome: ErasureOutcome, *, end_versions: bool
) -> None:
    """Refresh the tables that are computed from the targets, so that they have nothing of the key from there. Safe
    to repeat."""
    for one in projections:
        outcome.refreshed.append(refreshing.refresh(one))
        outcome.versions += filter(None, [refreshing.projector.describe_versions(one, end=end_versions)])


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
        matches = self._withholding.find_erased(raw)
        if matches is None:
            return [False] * raw.num_rows
        records = raw.filter(matches)
        self.linked |= self._withholding.list_other_keys(records)
        for topic, key in zip(records["topic"].to_pylist(), records["key"].to_pylist(), strict=True):
            if key is not None and not self._is_plain(key):
                self.messages.add(self._hashes.hash_message(topic, key))
        return [bool(hit) for hit in matches.to_pylist()]

    def can_compare(self, letter: DeadLetter) -> bool:
        """True if the record need not be decoded. It is of another table, or has a row key in its message key or value, as
        JSON."""
        if letter.table and letter.table.rpartition(".")[2] != self.erasure.table.rpartition(".")[2]:
            return True
        return letter.topic in self.erasure.topics and any(map(self._is_plain, filter(None, (letter.key, letter.record))))

    def _is_plain(self, key: bytes) -> bool:
        """True if the message key itself contains a row key. If that is another key, the record must not count."""
        try:
            return any(find_keys(self.erasure.columns, msgspec.json.decode(key)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False

    def find_positions(self, frames: Iterable[pa.Table], show_line: Callable[[str], None]) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of the records of the key."""
        positions, count = [], 0
        for raw in frames:
            hits = pa.array(self.find_matches(raw), pa.bool_())
            at = raw.filter(hits)
            positions += list(zip(*(at[name].to_pylist() for name in RAW_RECORD_POSITION), strict=True))
            if (count + raw.num_rows) // 1_000_000 > count // 1_000_000:
                show_line(
                    f"{format_count(count + raw.num_rows, 'record')} of the event log read, {len(positions):,} of the key"
                )
            count += raw.num_rows
        return positions


def _get_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _find_source(components: Components, table: str, source: str | None) -> str:
    sources = [name for name, rules in components.sources.items() if rules.rules_for(table) is not None]
    if source is not None and source not in sources:
        raise ConfigProblem(
            f"source {source!r} has no table {table!r}",
            next_step=f"Sources with such a table: {', '.join(sources) or 'none'}.",
        )
    if not sources:
        raise ConfigProblem(
            f"no entry of `tables` matches {table!r}", next_step="Use the table's name at the source: SCHEMA.TABLE."
        )
    if source is None and len(sources) > 1:
        raise ConfigProblem(
            f"several sources have a table {table!r}", next_step=f"Name one with `--source`: {', '.join(sources)}."
        )
    return source or sources[0]


def _list_targets(components: Components, table: str, source: str) -> list[Lane]:
    """The targets of the table, also those of rebuilds."""
    entry, rules = components.register.load(source), cast(TableRules, components.sources[source].rules_for(table))
    targets = [lane for lane in rules.lanes if find_target_problem(lane, entry) is None]
    return targets + list(list_rebuilds(components, table, source))


def _open_sink(components: Components, lane: Lane, stack: ExitStack) -> Sink[Any]:
    return stack.enter_context(closing(components.open_sink(lane.sink, "rewrite")))


def _require_erasure(erasure: T | None, lane: Lane) -> T:
    sentence = f"sink {lane.sink!r} cannot remove single rows. Nothing was removed"
    step = "Remove the lane from the config, and delete the row with the tools of the sink's own system."
    return require_feature(erasure, sentence, step)


def _find_schema(components: Components, table: str, source: str, targets: Sequence[tuple[Lane, Sink[Any]]]) -> TableSpec:
    """The table with its key, from the newest schema of a lane. Without one, as far as the config declares it."""
    for lane, sink in targets:
        versions = [version for version in read_schema_versions(sink, lane) if version.source.keys]
        if versions:
            return versions[-1].source
    rules = components.sources[source].rules_for(table)
    keys = (rules and rules.keys) or components.register.load(source).keys.get(table, ())
    if not keys:
        raise ConfigProblem(
            f"the key of table {table} is unknown: none of its targets has rows yet",
            next_step="Set `keys` in its entry under `tables`, or run the pipeline first.",
        )
    return TableSpec(table, tuple(Column(name, pa.string()) for name in keys), tuple(keys))


def _list_key_texts(rules: TableRules, spec: TableSpec, key: Sequence[str]) -> Iterator[str]:
    """The key in its comparable form. Values of masked columns may be given in clear."""
    for name, value in zip(spec.keys, parse_key(spec, key), strict=True):
        (text,) = to_key_texts(pa.chunked_array([pa.array([value])])).to_pylist()
        mask = rules.masks.get(name)
        if mask is not None and mask.kind == "hmac" and not HASH_PATTERN.match(text):
            text = hmac.new(mask.key, text.encode(), "sha256").hexdigest()
        yield text


def _describe_remaining(components: Components, table: str, source: str) -> Iterator[str]:
    """The copies of rows of the table that `erase_row` does not change."""
    topic = components.dead_letters.topic
    if topic:
        yield (
            f"the Kafka topic {topic} of the dead letters cannot be edited. `replicator dlq purge`, or the topic's "
            "retention, removes the record when it deletes the topic up to there"
        )
    backfill = components.sources[source].backfill_folder / quote(table, safe="")
    if backfill.is_dir():
        yield f"{backfill} has the rows that `replicator backfill` read of the table, until the next backfill replaces them"
    folder = components.sources[source].kept_folder
    if folder.is_dir():
        yield f"{folder} has the rows that source {source} compares its table with: remove the row at the source"
    yield f"topics, files and tables of source {source} itself stay unchanged; later records of the row are ignored"


# Erases rows from checkpoints, as from targets.


def list_stores(components: Components, table: str, source: str) -> list[CheckpointStore]:
    """The checkpoint folders of the pipeline's lanes at the event logs of the table, including lanes no longer
    configured."""
    stores: list[CheckpointStore] = []
    rules = components.sources[source].rules_for(table)
    for log in sorted(rules.event_logs if rules else ()):
        folder = components.sinks[log].log_folder
        home = Path(folder or "") / CHECKPOINTS_FOLDER / quote(components.pipeline, safe="")
        stores += [CheckpointStore(path) for path in sorted(home.glob("*"))] if folder is not None else []
    return stores


def make_checkpoint_erasure(lake: Sink[Any], lane: Lane) -> KeyErasure:
    """Erases keys from the copy of `lane` in a checkpoint. Its older versions are deleted at once, because nothing
    reads them."""
    erasure = require_feature(lake.features.erasure, STORES_NONE)
    then = make_rebuild_lane(lane, AS_OF_TARGET)  # The lane has another name here.
    return KeyErasure(
        erase=lambda _, key: replace(erasure.erase(then, key), versions=erasure.end_versions(then)),
        end_versions=lambda _: erasure.end_versions(then),
    )


def open_checkpoints(
    components: Components, table: str, source: str, stack: ExitStack
) -> Iterator[tuple[Lane, KeyErasure, Any]]:
    """Every checkpoint of the table's lanes: its lane with the checkpoint number in its name, its target, and its
    dead letters.

    They stay locked until `stack` ends. Half-made checkpoints of any table are removed, because they do not name
    their table. Fenced while another process makes one.
    """
    for store in list_stores(components, table, source):
        stack.enter_context(store.lock())
        store.remove_leftovers()
        for one in (stored for stored in store.list_all() if stored.table == table):
            rules = components.sources[source].rules_for(one.table)
            lane = next((each for each in (rules.lanes if rules else ()) if each.id == one.lane), None)
            if lane is None:  # The config has it no more.
                sink_name, _, into = one.lane.partition(".")
                lane = Lane(one.lane, components.pipeline, source, one.table, sink_name, into, "")
            stack.enter_context(store.mark_changing(one))
            lake = components.use_lake(lane.sink, store.get_folder(one))
            sink = make_checkpoint_erasure(stack.enter_context(closing(lake.open_sink(lane.sink))), lane)
            letters = stack.enter_context(closing(lake.open_dead_letters()))
            yield replace(lane, id=f"{lane.id}, checkpoint {one.number}"), sink, letters
