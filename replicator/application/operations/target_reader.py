"""Reads targets by name, for the command line and for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from replicator.application.sink_features import get_reader, require_feature
from replicator.domain.errors import ConfigProblem, ExitCode, Fatal
from replicator.domain.events import EVENT_STORE
from replicator.domain.position import Position
from replicator.domain.read_query import BuildReadQuery, ReadTimeout
from replicator.domain.suggestions import suggest_name
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.sink import Sink

from .as_of import AsOfValue, find_lane, find_version, read_rows_as_of, resolve_as_of


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The rows to read: of a `version`, as of `as_of`, or the current ones.

    - `where`, `limit`: an SQL condition, and a maximum number of rows.
    - `choose`: instead of these, the query of a `ports.reader.SelectRows`.
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
    parts: Components,
    name: str,
    *,
    version: int | None = None,
    as_of: AsOfValue | None = None,
    where: str | None = None,
    limit: int | None = None,
    from_log: bool = False,
    choose: BuildReadQuery | None = None,
    seconds: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> pa.Table:
    """The rows of a target.

    `name` is one of: `SINK.TABLE`, the source name of the table, `TABLE` in the first sink that has it, or
    `SCHEMA.TABLE` of a PostgreSQL sink.

    `as_of` is a time at the source or a position of its stream. The rows come from the version with exactly the
    records up to then, otherwise from the event log, always with `from_log`. `tell` gets which one. For a target
    without an event log the time is that of commits.

    `choose`, `seconds`: see `ports.reader.SelectRows`.
    """
    asked = ReadRequest(version, as_of, where, limit, from_log, choose, seconds)
    sink, table = _split_name(parts, name)
    if sink is not None:
        with _open_sink(parts, sink) as opened:
            try:
                return _read_rows(parts, (sink, table), opened, asked, tell)
            except Fatal as error:
                if error.exit_code is not ExitCode.RUNTIME or table in _list_tables(opened):
                    raise
                raise ConfigProblem(error.sentence, next_step=error.next_step) from error
    seen: dict[str, list[str]] = {}
    for candidate, table in _list_candidates(parts, name):
        with closing(parts.open_sink(candidate)) as opened:
            if candidate not in seen:
                seen[candidate] = _list_tables(opened)
            if table in seen[candidate]:
                return _read_rows(parts, (candidate, table), opened, asked, tell)
    raise _make_unknown_error(name, seen)


def _read_rows(
    parts: Components, target: tuple[str, str], sink: Sink[Any], request: ReadRequest, report: Callable[[str], None]
) -> pa.Table:
    if request.as_of is None or request.version is not None:
        if request.as_of is not None:
            raise ConfigProblem("a query has both a version and a time", next_step="Use only one of them.")
        return request.read_from(sink, target[1])
    try:
        lane = _find_event_log_lane(parts, target)
    except ConfigProblem:
        if request.from_log or isinstance(request.as_of, Position):
            raise
        found = request.read_from(sink, target[1])
        report(
            f"{'.'.join(target)} as it was at {request.as_of}: by the times of its commits, since its table has no event log"
        )
        return found
    return _read_as_of(parts, lane, sink, request, report)


def _find_event_log_lane(parts: Components, target: tuple[str, str]) -> Lane:
    lane = find_lane(parts, *target)
    parts.find_log(lane.table)
    return lane


def _read_as_of(
    parts: Components, lane: Lane, sink: Sink[Any], request: ReadRequest, report: Callable[[str], None]
) -> pa.Table:
    moment = resolve_as_of(parts, lane, cast(AsOfValue, request.as_of))
    name, now = f"{lane.id} as it was at {moment}", replace(request, as_of=None)
    version = None if request.from_log else find_version(parts, lane, sink, moment)
    if version is not None and not version.is_ahead:
        found = _read_version(version.number, lane, sink, now)
        if found is not None:
            report(f"{name}: version {version.number}")
            return found
    report(f"{name}: from the event log")
    try:
        return read_rows_as_of(parts, lane, moment, now.read_from, request.seconds, tell=report)
    except (ConfigProblem, ReadTimeout):
        raise
    except Fatal as unable:
        found = _read_version(version.number, lane, sink, now) if version is not None and version.is_ahead else None
        if version is None or found is None:
            raise
        report(
            f"{name}: version {version.number}, with columns of later records; the event log has no answer: "
            f"{unable.sentence}"
        )
        return found


def _read_version(version: int, lane: Lane, sink: Sink[Any], now: ReadRequest) -> pa.Table | None:
    """The requested rows of a version; None if the version is gone."""
    try:
        return replace(now, version=version).read_from(sink, lane.into)
    except (ConfigProblem, ReadTimeout):
        raise  # The request itself is wrong, for any version.
    except Fatal:
        return None


def _list_candidates(parts: Components, name: str) -> Iterator[tuple[str, str]]:
    """Sinks and tables that a name may mean."""
    for lane in parts.resolve_lanes(name):
        yield lane.sink, lane.into
    for sink in parts.sinks:
        yield sink, name
    schema, _, table = name.rpartition(".")
    for sink, rules in parts.sinks.items():
        if schema and schema == rules.schema:
            yield sink, table


def _make_unknown_error(name: str, seen: Mapping[str, Sequence[str]]) -> ConfigProblem:
    known = [f"{sink}.{table}" for sink, tables in seen.items() for table in tables]
    near = suggest_name(name.rpartition(".")[2], {table for tables in seen.values() for table in tables})
    near = near or suggest_name(name, known)
    listing = "`replicator lanes list` names the known targets, `replicator status` shows their progress."
    return ConfigProblem(f"no sink has a table {name!r}", next_step=f"{near[:1].upper()}{near[1:]} {listing}".strip())


def _split_name(parts: Components, name: str) -> tuple[str | None, str]:
    """A sink and a table, if the name starts with that of a sink. The table may have its source name."""
    sink, dot, table = name.partition(".")
    if not dot or sink not in parts.sinks:
        return None, name
    into = (lane.into for lane in parts.resolve_lanes(table) if lane.sink == sink and lane.into != table)
    return sink, next(into, table) if "." in table else table


@contextmanager
def _open_sink(parts: Components, name: str) -> Iterator[Sink[Any]]:
    """A sink whose targets can be read."""
    if name not in parts.sinks:
        raise ConfigProblem(f"there is no sink {name!r}", next_step=f"There are: {', '.join(parts.sinks)}.")
    with closing(parts.open_sink(name)) as sink:
        if parts.sinks[name].kind == EVENT_STORE:
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
