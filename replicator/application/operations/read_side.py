"""The targets of a pipeline for HTTP clients: pages of rows, and histories of rows."""

from __future__ import annotations

import binascii
import json
import re
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, cast

import pyarrow as pa

from replicator.application.sink_features import get_reader, require_feature
from replicator.domain.errors import ConfigProblem, ExitCode, Fatal, suggest_name
from replicator.domain.events import EVENT_STORE
from replicator.domain.patterns import matches
from replicator.domain.plain_values import format_count
from replicator.domain.policy import CURRENT_ROW_POLICIES
from replicator.domain.policy.plan import EVENT_ID
from replicator.domain.position import Position
from replicator.domain.read_query import (
    BuildReadQuery,
    InvalidReadQuery,
    Operator,
    ReadCondition,
    ReadQuery,
    ReadTimeout,
    from_exact_text,
    is_comparable,
    parse_value,
    to_exact_text,
)
from replicator.domain.timeline import HistoryEntry, Row
from replicator.domain.transform.columns import NO_COLUMN_RULE
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.reads import Busy, Filter, NotFound, Page, PageRequest, ReadTarget, RowHistory
from replicator.ports.sink import Sink

from .as_of import AsOfValue, find_lane_of_target, find_version, read_rows_as_of, resolve_as_of, stop_after
from .change_history import ChangeLogReader, read_history

# Reads targets by name, for the command line and for notebooks.


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The rows to read: of a `version`, as of `as_of`, or the current ones.

    - `where`, `limit`: an SQL condition, and a maximum number of rows.
    - `choose`: instead of these, the query of a `ports.sink.SinkFeatures.select`.
    - `from_log`: read the event log, even if a version fits.
    - `seconds`: maximum time of the read.
    """

    version: int | None = None
    as_of: AsOfValue | None = None
    where: str | None = None
    limit: int | None = None
    from_log: bool = False
    choose: BuildReadQuery | None = None
    seconds: float | None = None

    def read_from(self, sink: Sink[Any], table: str) -> pa.Table:
        """The rows from a sink."""
        then: Any = {"version": self.version, "as_of": self.as_of}
        if self.choose is not None:
            select = require_feature(sink.features.select, f"single rows of {table!r} cannot be read")
            return select(table, self.choose, **then, seconds=self.seconds)
        return get_reader(sink).read(table, **then, where=self.where, limit=self.limit)


def read_target(
    components: Components,
    name: str,
    *,
    version: int | None = None,
    as_of: AsOfValue | None = None,
    where: str | None = None,
    limit: int | None = None,
    from_log: bool = False,
    choose: BuildReadQuery | None = None,
    seconds: float | None = None,
    show_line: Callable[[str], None] = lambda _: None,
) -> pa.Table:
    """The rows of a target.

    `name` is one of: `SINK.TABLE`, the source name of the table, `TABLE` in the first sink that has it, or
    `SCHEMA.TABLE` of a PostgreSQL sink.

    `as_of` is a time at the source or a position of its stream. The rows come from the version with exactly the
    records up to then, otherwise from the event log, always with `from_log`. `show_line` gets which one. For a target
    without an event log the time is that of commits.

    `choose`, `seconds`: see `ports.sink.SinkFeatures.select`.
    """
    request = ReadRequest(version, as_of, where, limit, from_log, choose, seconds)
    sink, table = _split_name(components, name)
    if sink is not None:
        with _open_sink(components, sink) as open_sink:
            try:
                return _read_rows(components, (sink, table), open_sink, request, show_line)
            except Fatal as error:
                if error.exit_code is not ExitCode.RUNTIME or table in _list_tables(open_sink):
                    raise
                raise ConfigProblem(error.sentence, next_step=error.next_step) from error
    seen: dict[str, list[str]] = {}
    for candidate, table in _list_candidates(components, name):
        with closing(components.open_sink(candidate)) as open_sink:
            if candidate not in seen:
                seen[candidate] = _list_tables(open_sink)
            if table in seen[candidate]:
                return _read_rows(components, (candidate, table), open_sink, request, show_line)
    names = [f"{sink}.{table}" for sink, tables in seen.items() for table in tables]
    hint = suggest_name(name.rpartition(".")[2], {table for tables in seen.values() for table in tables})
    hint = hint or suggest_name(name, names)
    listing = "`replicator lanes list` names the known targets, `replicator status` shows their progress."
    raise ConfigProblem(f"no sink has a table {name!r}", next_step=f"{hint[:1].upper()}{hint[1:]} {listing}".strip())


def _read_rows(
    components: Components, target: tuple[str, str], sink: Sink[Any], request: ReadRequest, show_line: Callable[[str], None]
) -> pa.Table:
    if request.as_of is None or request.version is not None:
        if request.as_of is not None:
            raise ConfigProblem("a query has both a version and a time", next_step="Use only one of them.")
        return request.read_from(sink, target[1])
    try:
        lane = find_lane_of_target(components, *target)
        components.find_log(lane.table)
    except ConfigProblem:
        if request.from_log or isinstance(request.as_of, Position):
            raise
        rows = request.read_from(sink, target[1])
        show_line(
            f"{'.'.join(target)} as it was at {request.as_of}: by the times of its commits, since its table has no event log"
        )
        return rows
    return _read_as_of(components, lane, sink, request, show_line)


def _read_as_of(
    components: Components, lane: Lane, sink: Sink[Any], request: ReadRequest, show_line: Callable[[str], None]
) -> pa.Table:
    as_of = resolve_as_of(components, lane, cast(AsOfValue, request.as_of))
    name, now = f"{lane.id} as it was at {as_of}", replace(request, as_of=None)
    version = None if request.from_log else find_version(components, lane, sink, as_of)
    if version is not None and not version.is_ahead:
        rows = _read_version(version.number, lane, sink, now)
        if rows is not None:
            show_line(f"{name}: version {version.number}")
            return rows
    show_line(f"{name}: from the event log")
    try:
        return read_rows_as_of(components, lane, as_of, now.read_from, request.seconds, show_line=show_line)
    except (ConfigProblem, ReadTimeout):
        raise
    except Fatal as unable:
        rows = _read_version(version.number, lane, sink, now) if version is not None and version.is_ahead else None
        if version is None or rows is None:
            raise
        show_line(
            f"{name}: version {version.number}, with columns of later records; the event log has no answer: "
            f"{unable.sentence}"
        )
        return rows


def _read_version(version: int, lane: Lane, sink: Sink[Any], now: ReadRequest) -> pa.Table | None:
    """The requested rows of a version; None if the version is gone."""
    try:
        return replace(now, version=version).read_from(sink, lane.into)
    except (ConfigProblem, ReadTimeout):
        raise  # The request itself is wrong, for any version.
    except Fatal:
        return None


def _list_candidates(components: Components, name: str) -> Iterator[tuple[str, str]]:
    """Sinks and tables that a name may mean."""
    for lane in components.resolve_lanes(name):
        yield lane.sink, lane.into
    for sink in components.sinks:
        yield sink, name
    schema, _, table = name.rpartition(".")
    for sink, rules in components.sinks.items():
        if schema and schema == rules.schema:
            yield sink, table


def _split_name(components: Components, name: str) -> tuple[str | None, str]:
    """A sink and a table, if the name starts with that of a sink. The table may have its source name."""
    sink, dot, table = name.partition(".")
    if not dot or sink not in components.sinks:
        return None, name
    into = (lane.into for lane in components.resolve_lanes(table) if lane.sink == sink and lane.into != table)
    return sink, next(into, table) if "." in table else table


@contextmanager
def _open_sink(components: Components, name: str) -> Iterator[Sink[Any]]:
    """A sink whose targets can be read."""
    if name not in components.sinks:
        raise ConfigProblem(f"there is no sink {name!r}", next_step=f"There are: {', '.join(components.sinks)}.")
    with closing(components.open_sink(name)) as sink:
        if components.sinks[name].kind == EVENT_STORE:
            raise ConfigProblem(
                "the event store cannot be queried by table",
                next_step="`replicator events TYPE [ID]` shows its events. SQL can read its folder or table.",
            )
        require_feature(sink.features.reader, f"sink {name!r} cannot be queried", "Read its files or its table with SQL.")
        yield sink


def _list_tables(sink: Sink[Any]) -> list[str]:
    """The tables of a sink; empty for a sink that cannot be read."""
    try:
        return list(sink.features.reader.tables()) if sink.features.reader is not None else []
    except Fatal:
        return []


# Pages of rows: filters and order of a request, and the start of the next page.

OPERATORS: Mapping[str, Operator] = {"eq": "=", "ne": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
"""The operators by their names in filters. There is also `null`, with `true` or `false`."""
NULL_OPERATORS: Mapping[str, Operator] = {"true": "is null", "false": "is not null"}
SEQUENCE = re.compile(r"_cdc_seq_\d+")
MAX_EQUAL_ROWS = 10_000
"""Maximum rows with equal values in all order columns."""
FROM_THE_BEGINNING = "Leave `after` out to begin at the first page."
PageStart = tuple[str | None, ...]


class PageQuery:
    """The pages of a request to a table with this `key`. Several rows may share one key unless it is `unique`.

    Call `build_query` first, read the rows of its query, then call `make_page` with them.
    """

    def __init__(self, request: PageRequest, key: Sequence[str], *, unique: bool) -> None:
        self._request, self._key, self._unique = request, tuple(key), unique and bool(key)
        self._order: tuple[str, ...] = ()
        self._start: PageStart = ()
        self._passed = 0

    def build_query(self, schema: pa.Schema) -> ReadQuery:
        """The query for a table with these columns: one row more than the page, plus the rows of the last page that
        share its end.

        InvalidReadQuery for unknown columns, and for values of another type than the column.
        """
        key = self._request.key
        if key and len(key) != len(self._key):
            columns = ", ".join(self._key)
            raise InvalidReadQuery(
                f"the key has {format_count(len(self._key), 'column')} ({columns}), not {len(key)}"
                if self._key
                else "the key of the table is unknown",
                next_step="Pass a value for each column, in this order." if self._key else "Use filters to select rows.",
            )
        key_filters = [Filter(name, "eq", text) for name, text in zip(self._key, key, strict=True)] if key else []
        conditions = [to_condition(one, schema) for one in (*key_filters, *self._request.filters)]
        # The key, and the columns that distinguish rows with the same key.
        self._order = tuple(n for n in self._key if n in schema.names and is_comparable(schema.field(n).type))
        if not self._unique or len(self._order) < len(self._key):
            ours = [name for name in schema.names if SEQUENCE.fullmatch(name)]
            ours += [EVENT_ID] if EVENT_ID in schema.names else []
            others = [f.name for f in schema if is_comparable(f.type) and not pa.types.is_floating(f.type)]
            self._order = tuple(dict.fromkeys((*self._order, *(ours or others))))
        self._start, self._passed = _decode_page_start(self._request.after, len(self._order))
        try:
            pairs = zip(self._start, self._order, strict=False)
            start = tuple(from_exact_text(text, schema.field(name).type) for text, name in pairs)
        except ValueError:
            raise _make_page_start_error() from None
        return ReadQuery(tuple(conditions), self._order, start, self._request.limit + self._passed + 1)

    def make_page(self, rows: pa.Table) -> Page:
        """The rows of the page. Rows of the last page may be gone meanwhile; then nothing is skipped for them."""
        # A page starts at values, not at a row number: rows that were inserted or deleted meanwhile would shift all others.
        positions = [tuple(map(to_exact_text, row)) for row in zip(*(rows[n] for n in self._order), strict=True)]
        before = min(self._passed, sum(1 for _ in takewhile(lambda position: position == self._start, positions)))
        end = before + self._request.limit
        page = rows.slice(before, self._request.limit)
        if rows.num_rows <= end:
            return Page(page, None)
        last = positions[end - 1]
        alike = sum(1 for _ in takewhile(lambda position: position == last, reversed(positions[:end])))
        next_start = json.dumps([list(last), alike], separators=(",", ":")).encode()
        return Page(page, urlsafe_b64encode(next_start).decode().rstrip("="))


def to_condition(filter_: Filter, schema: pa.Schema) -> ReadCondition:
    """A filter whose value has the type of its column."""
    if filter_.column not in schema.names:
        raise InvalidReadQuery(
            f"there is no column {filter_.column!r}", next_step=f"The columns are: {', '.join(schema.names)}."
        )
    kind = schema.field(filter_.column).type
    if filter_.operator == "null":
        if filter_.text not in NULL_OPERATORS:
            raise InvalidReadQuery(
                f"{filter_.column}[null] is neither true nor false", next_step="Write [null]=true or [null]=false."
            )
        return ReadCondition(filter_.column, NULL_OPERATORS[filter_.text])
    if filter_.operator not in OPERATORS:
        operators = ", ".join((*OPERATORS, "null"))
        raise InvalidReadQuery(f"there is no comparison {filter_.operator!r}", next_step=f"There are: {operators}.")
    if not is_comparable(kind):
        raise InvalidReadQuery(
            f"column {filter_.column!r} is a {kind}, which cannot be compared",
            next_step="Filter by other columns, or by `[null]`.",
        )
    try:
        return ReadCondition(filter_.column, OPERATORS[filter_.operator], parse_value(filter_.text, kind))
    except ValueError:
        raise InvalidReadQuery(
            f"{filter_.text!r} does not fit type {kind} of column {filter_.column!r}",
            next_step="Write the value as the rows show it.",
        ) from None


def _decode_page_start(after: str | None, columns: int) -> tuple[PageStart, int]:
    """The values at the end of the page before, and the number of its last rows that have these values."""
    if after is None:
        return (), 0
    try:
        values, alike = json.loads(urlsafe_b64decode(after.encode("ascii") + b"=" * (-len(after) % 4)))
        values = list(values)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise _make_page_start_error() from None
    if len(values) != columns or not all(v is None or isinstance(v, str) for v in values):
        raise _make_page_start_error()
    if type(alike) is not int or not alike > 0:
        raise _make_page_start_error()
    if alike > MAX_EQUAL_ROWS:
        raise InvalidReadQuery(
            f"more than {MAX_EQUAL_ROWS:,} rows are equal, so there is no next page",
            next_step="Use filters to select fewer rows.",
        )
    return tuple(values), alike


def _make_page_start_error() -> InvalidReadQuery:
    return InvalidReadQuery("`after` is not from a page of these rows", next_step=FROM_THE_BEGINNING)


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
    """`ports.reads.ReadSide` for the sinks of a pipeline. Nothing stays open between two requests."""

    def __init__(
        self, components: Components, open_history: OpenHistory, globs: Sequence[str] | None, seconds: float
    ) -> None:
        """`open_history`: the reader of a table's event log. `globs`: the targets that may be read; None: those of lanes.
        `seconds`: maximum time of a read."""
        self._components, self._open_history = components, open_history
        self._globs, self._seconds = globs, seconds
        self._turns = {False: threading.BoundedSemaphore(MAX_READERS), True: threading.BoundedSemaphore(MAX_PAST_READERS)}

    def targets(self) -> Sequence[ReadTarget]:
        lanes = self._list_lanes()
        names = [f"{sink}.{table}" for sink in self._components.sinks for table in self._list_tables(sink)]
        return [self._make_target(name, lanes) for name in sorted(names) if self._is_offered(name, lanes)]

    def columns(self, name: str) -> tuple[ReadTarget, pa.Schema]:
        target = self._find_target(name)
        with self._limit_readers():
            rows = read_target(self._components, name, choose=lambda _: ReadQuery(limit=0), seconds=self._seconds)
        return target, rows.schema

    def rows(self, name: str, wanted: PageRequest) -> Page:
        if wanted.from_log and wanted.as_of is None:
            raise InvalidReadQuery("`from_log` needs a time", next_step="Set it with `as_of`.")
        target = self._find_target(name)
        paging = PageQuery(wanted, target.key, unique=target.policy in CURRENT_ROW_POLICIES)
        notes: list[str] = []
        then: dict[str, Any] = {"as_of": wanted.as_of, "from_log": wanted.from_log}
        with self._limit_readers(of_the_past=wanted.as_of is not None):
            rows = read_target(
                self._components, name, **then, choose=paging.build_query, seconds=self._seconds, show_line=notes.append
            )
        page = paging.make_page(rows)
        if wanted.key and not wanted.filters and not rows.num_rows:
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
            entries, read = read_history(log, target.source_table, key, lambda _: None, stop)
        if not entries:
            sentence = f"the event log of table {target.source_table} has no row with this key"
            raise NotFound("; ".join([sentence, *read.missing_sentences]))
        # Histories must not show more than the target: only columns that it stores unchanged, with their names there.
        transforms = lanes[0].row_transforms
        columns = read.table.column_names if read.table else ()
        shown = [name for name in columns if transforms.columns is None or name in transforms.columns]
        rules = {name: transforms.column_transforms.get_rule(name) for name in shown}
        names = {name: rule.rename or name for name, rule in rules.items() if replace(rule, rename="") == NO_COLUMN_RULE}
        return RowHistory(
            target, [_rename_entry(one, names) for one in entries], read.rejected, tuple(read.missing_sentences)
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
        if sink in self._components.sinks and self._is_offered(name, lanes) and table in self._list_tables(sink):
            return self._make_target(name, lanes)
        hint = suggest_name(name, [target.name for target in self.targets()])
        raise NotFound(f"there is no table {name!r}", next_step=f"{hint[:1].upper()}{hint[1:]} /tables lists them.".strip())

    def _is_offered(self, name: str, lanes: Lanes) -> bool:
        return name in lanes if self._globs is None else any(matches(glob, name) for glob in self._globs)

    def _list_tables(self, sink: str) -> Sequence[str]:
        """The tables of a sink that support pages."""
        with closing(self._components.open_sink(sink)) as open_sink:
            features = open_sink.features
            return list(features.reader.tables()) if features.reader and features.select else []

    def _list_lanes(self) -> dict[str, list[Lane]]:
        """The lanes by target, of all tables that were read so far or are named in the config."""
        lanes: dict[str, list[Lane]] = {}
        for name, source in self._components.sources.items():
            for table in sorted({*self._components.register.load(name).topics, *source.tables}):
                rules = source.rules_for(table)
                for lane in rules.lanes if rules else ():
                    lanes.setdefault(lane.id, []).append(lane)
        return lanes

    def _make_target(self, name: str, lanes: Lanes) -> ReadTarget:
        table_lanes = lanes.get(name, ())
        keys = set()
        for lane in table_lanes:
            stored_keys = self._components.register.load(lane.source).keys.get(lane.table, ())
            names = [lane.row_transforms.column_transforms.get_new_name(name) for name in lane.keys or stored_keys]
            keys.add(tuple(names) if all(names) else ())  # Empty if the target lacks one of the columns.
        policies = {lane.policy for lane in table_lanes}
        table = table_lanes[0].table if len(table_lanes) == 1 else None
        has_history = False
        if table is not None:
            with suppress(ConfigProblem):
                has_history = bool(self._components.find_log(table))
        return ReadTarget(
            name,
            next(iter(keys)) if len(keys) == 1 else (),
            next(iter(policies)) if len(policies) == 1 else None,
            table,
            has_history,
        )


def _rename_entry(entry: HistoryEntry, names: Mapping[str, str]) -> HistoryEntry:
    def row(one: Row | None) -> Row | None:
        return None if one is None else {names[name]: value for name, value in one.items() if name in names}

    changed = tuple(names[name] for name in entry.changed if name in names)
    return replace(
        entry, before=row(entry.before), after=row(entry.after), changed=changed, moved_from=row(entry.moved_from)
    )
