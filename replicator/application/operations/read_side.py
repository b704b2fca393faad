"""The targets of a pipeline for HTTP clients: pages of rows, and histories of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from replicator.domain.errors import ConfigProblem
from replicator.domain.patterns import matches
from replicator.domain.policy.policy_names import CURRENT_ROW_POLICIES
from replicator.domain.read_query import InvalidReadQuery, ReadQuery
from replicator.domain.suggestions import suggest_name
from replicator.domain.timeline import HistoryEntry, Row
from replicator.domain.transform.columns import NO_COLUMN_RULE
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.read_side import Busy, NotFound, Page, PageRequest, ReadTarget, RowHistory

from .as_of import stop_after
from .change_history import ChangeLogReader, read_history
from .read_pages import PageQuery
from .target_reader import read_target

MAX_READERS = 4
"""Maximum parallel reads. Each holds a page in memory and uses all cores."""
MAX_PAST_READERS = 1
"""Maximum parallel reads that may read an event log from its start."""
WAIT_SECONDS = 2.0
"""Maximum seconds that a read waits for its turn."""
OpenHistory = Callable[[str], AbstractContextManager[ChangeLogReader]]
Lanes = Mapping[str, Sequence[Lane]]
NO_ROW_STEP = "`history` shows the changes of deleted rows."


class ConfiguredTargets:
    """`ports.read_side.ReadSide` for the sinks of a pipeline. Nothing stays open between two requests."""

    def __init__(self, parts: Components, open_history: OpenHistory, globs: Sequence[str] | None, seconds: float) -> None:
        """`open_history`: the reader of a table's event log. `globs`: the targets that may be read; None: those of lanes.
        `seconds`: maximum time of a read."""
        self._parts, self._open_history = parts, open_history
        self._globs, self._seconds = globs, seconds
        self._turns = {False: threading.BoundedSemaphore(MAX_READERS), True: threading.BoundedSemaphore(MAX_PAST_READERS)}

    def targets(self) -> Sequence[ReadTarget]:
        lanes = self._list_lanes()
        names = [f"{sink}.{table}" for sink in self._parts.sinks for table in self._list_tables(sink)]
        return [self._make_target(name, lanes) for name in sorted(names) if self._is_offered(name, lanes)]

    def columns(self, name: str) -> tuple[ReadTarget, pa.Schema]:
        target = self._find_target(name)
        with self._limit_readers():
            found = read_target(self._parts, name, choose=lambda _: ReadQuery(limit=0), seconds=self._seconds)
        return target, found.schema

    def rows(self, name: str, wanted: PageRequest) -> Page:
        if wanted.from_log and wanted.as_of is None:
            raise InvalidReadQuery("`from_log` needs a time", next_step="Set it with `as_of`.")
        target = self._find_target(name)
        paging = PageQuery(wanted, target.key, unique=target.policy in CURRENT_ROW_POLICIES)
        notes: list[str] = []
        then: dict[str, Any] = {"as_of": wanted.as_of, "from_log": wanted.from_log}
        with self._limit_readers(of_the_past=wanted.as_of is not None):
            found = read_target(
                self._parts, name, **then, choose=paging.build_query, seconds=self._seconds, tell=notes.append
            )
        page = paging.make_page(found)
        if wanted.key and not wanted.filters and not found.num_rows:
            raise NotFound(f"table {name} has no row with this key", next_step=NO_ROW_STEP if target.has_history else "")
        return replace(page, notes=tuple(notes))

    def history(self, name: str, key: Sequence[str]) -> RowHistory:
        target, lanes = self._find_target(name), self._list_lanes().get(name, [])
        if target.source_table is None or not lanes:
            raise NotFound(
                f"{name} is not the target of one table, so no event log has the history of its rows",
                next_step="Use a target with a `source_table`.",
            )
        stop = threading.Event()
        doing = f"reading the event log of {target.source_table}"
        turn, late = self._limit_readers(of_the_past=True), stop_after(self._seconds, stop, doing)
        with turn, late, self._open_history(target.source_table) as log:
            entries, known = read_history(log, target.source_table, key, lambda _: None, stop)
        if not entries:
            sentence = f"the event log of table {target.source_table} has no row with this key"
            raise NotFound("; ".join([sentence, *known.missing_sentences]))
        shown = _map_shown_columns(lanes[0], known.table.column_names if known.table else ())
        return RowHistory(
            target, [_rename_entry(one, shown) for one in entries], known.rejected, tuple(known.missing_sentences)
        )

    @contextmanager
    def _limit_readers(self, *, of_the_past: bool = False) -> Iterator[None]:
        turn = self._turns[of_the_past]
        if not turn.acquire(timeout=WAIT_SECONDS):
            raise Busy("too many queries are running", next_step="Repeat the request in a few seconds.")
        try:
            yield
        finally:
            turn.release()

    def _find_target(self, name: str) -> ReadTarget:
        """The target with this name. NotFound if there is none, or if it must not be read."""
        lanes, (sink, _, table) = self._list_lanes(), name.partition(".")
        if sink in self._parts.sinks and self._is_offered(name, lanes) and table in self._list_tables(sink):
            return self._make_target(name, lanes)
        near = suggest_name(name, [target.name for target in self.targets()])
        raise NotFound(f"there is no table {name!r}", next_step=f"{near[:1].upper()}{near[1:]} /tables lists them.".strip())

    def _is_offered(self, name: str, lanes: Lanes) -> bool:
        return name in lanes if self._globs is None else any(matches(glob, name) for glob in self._globs)

    def _list_tables(self, sink: str) -> Sequence[str]:
        """The tables of a sink that support pages."""
        with closing(self._parts.open_sink(sink)) as opened:
            features = opened.features
            return list(features.reader.tables()) if features.reader and features.select else []

    def _list_lanes(self) -> dict[str, list[Lane]]:
        """The lanes by target, of all tables that were read so far or are named in the config."""
        found: dict[str, list[Lane]] = {}
        for name, source in self._parts.sources.items():
            for table in sorted({*self._parts.register.load(name).topics, *source.tables}):
                rules = source.rules_for(table)
                for lane in rules.lanes if rules else ():
                    found.setdefault(lane.id, []).append(lane)
        return found

    def _make_target(self, name: str, lanes: Lanes) -> ReadTarget:
        mine = lanes.get(name, ())
        keys = {self._find_key(lane) for lane in mine}
        policies = {lane.policy for lane in mine}
        table = mine[0].table if len(mine) == 1 else None
        return ReadTarget(
            name,
            next(iter(keys)) if len(keys) == 1 else (),
            next(iter(policies)) if len(policies) == 1 else None,
            table,
            table is not None and self._has_log(table),
        )

    def _find_key(self, lane: Lane) -> tuple[str, ...]:
        """The key with the target's column names; empty if the target lacks one of them."""
        seen = self._parts.register.load(lane.source)
        names = [
            lane.row_transforms.column_transforms.get_new_name(name) for name in lane.keys or seen.keys.get(lane.table, ())
        ]
        return tuple(names) if all(names) else ()

    def _has_log(self, table: str) -> bool:
        try:
            return bool(self._parts.find_log(table))
        except ConfigProblem:
            return False


def _map_shown_columns(lane: Lane, columns: Sequence[str]) -> Mapping[str, str]:
    """Source columns that the target stores unchanged, with their names there. Histories must not show more than
    the target."""
    chosen = lane.row_transforms.columns
    rules = {
        name: lane.row_transforms.column_transforms.get_rule(name) for name in columns if chosen is None or name in chosen
    }
    return {name: rule.rename or name for name, rule in rules.items() if replace(rule, rename="") == NO_COLUMN_RULE}


def _rename_entry(entry: HistoryEntry, shown: Mapping[str, str]) -> HistoryEntry:
    def row(one: Row | None) -> Row | None:
        return None if one is None else {shown[name]: value for name, value in one.items() if name in shown}

    changed = tuple(shown[name] for name in entry.changed if name in shown)
    return replace(
        entry, before=row(entry.before), after=row(entry.after), changed=changed, moved_from=row(entry.moved_from)
    )
