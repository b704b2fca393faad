"""Reading targets by name, for the command line and for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, ExitCode, Fatal
from replicator.domain.position import Position
from replicator.domain.selection import Choose, TooLong
from replicator.ports.reader import Reader
from replicator.settings import LaneSettings, Loaded, plain_options
from replicator.settings.nearest import did_you_mean
from replicator.settings.sinks import EventStoreSinkSettings

from . import adapters
from .histories import log_of
from .moments import Then, moment_of, version_of
from .offline import known_lanes
from .past import lane_into, rows_then


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rows: of a version, or as they were then, or as they are; for which `where` holds; at most `limit`.
    `from_log`: by the event log, whatever versions there are. Or instead of `where` and `limit` those that `choose` wants,
    of a sink whose reader is a `ports.reader.Selects`. `seconds`: what the reading may take."""

    version: int | None = None
    as_of: Then | None = None
    where: str | None = None
    limit: int | None = None
    from_log: bool = False
    choose: Choose | None = None
    seconds: float | None = None

    def of(self, reader: Any, table: str) -> pa.Table:
        """Those that a reader has."""
        if self.choose is not None:
            then: Any = {"version": self.version, "as_of": self.as_of, "seconds": self.seconds}
            chosen: pa.Table = reader.select(table, self.choose, **then)
            return chosen
        found: pa.Table = reader.read(table, version=self.version, as_of=self.as_of, where=self.where, limit=self.limit)
        return found


def read(
    loaded: Loaded,
    name: str,
    *,
    version: int | None = None,
    as_of: Then | None = None,
    where: str | None = None,
    limit: int | None = None,
    from_log: bool = False,
    choose: Choose | None = None,
    seconds: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> pa.Table:
    """The rows of a target. `name` is `SINK.TABLE`, or the table's name in the source, or `TABLE` in the first sink of the
    config that has it, or `SCHEMA.TABLE` of a PostgreSQL sink. `as_of`, a time at the source or a position of its stream:
    by the version that holds just the records up to then, and where there is none from the event log; always from that with
    `from_log`. Of a target without an event log a time is that of commits. `tell` is told which. `choose`, `seconds`: as of
    `ports.reader.Selects.select`."""
    asked = Asked(version, as_of, where, limit, from_log, choose, seconds)
    sink, table = _split(loaded, name)
    if sink is not None:
        with _reader(loaded, sink) as reader:
            try:
                return _rows(loaded, (sink, table), reader, asked, tell)
            except Fatal as error:
                if error.exit_code is not ExitCode.RUNTIME or table in _tables(reader):
                    raise
                raise ConfigProblem(error.sentence, next_step=error.next_step) from error
    seen: dict[str, list[str]] = {}
    for candidate, table in _candidates(loaded, name):
        with closing(cast(Any, adapters.sink(loaded, candidate))) as reader:
            if candidate not in seen:
                seen[candidate] = _tables(reader)
            if table in seen[candidate]:
                return _rows(loaded, (candidate, table), reader, asked, tell)
    raise _unknown(name, seen)


def _rows(loaded: Loaded, target: tuple[str, str], reader: Any, asked: Asked, tell: Callable[[str], None]) -> pa.Table:
    if asked.as_of is None or asked.version is not None:
        if asked.as_of is not None:
            raise ConfigProblem("a query names a version and a time", next_step="Give one of the two.")
        return asked.of(reader, target[1])
    try:
        lane = _with_log(loaded, target)
    except ConfigProblem:
        if asked.from_log or isinstance(asked.as_of, Position):
            raise
        found = asked.of(reader, target[1])
        tell(f"{'.'.join(target)} as it was at {asked.as_of}: by the times of its commits, since no event log tells others")
        return found
    return _then(loaded, lane, reader, asked, tell)


def _with_log(loaded: Loaded, target: tuple[str, str]) -> LaneSettings:
    lane = lane_into(loaded, *target, [lane.table for lane in known_lanes(loaded) if lane.table])
    log_of(loaded, lane.table)
    return lane


def _then(loaded: Loaded, lane: LaneSettings, reader: Any, asked: Asked, tell: Callable[[str], None]) -> pa.Table:
    moment = moment_of(loaded, lane, cast(Then, asked.as_of))
    name, now = f"{lane.sink}.{lane.into} as it was at {moment}", replace(asked, as_of=None)
    version = None if asked.from_log else version_of(loaded, lane, reader, moment)
    if version is not None and not version.ahead:
        found = _at(version.number, lane, reader, now)
        if found is not None:
            tell(f"{name}: version {version.number}")
            return found
    tell(f"{name}: from the event log")
    try:
        return rows_then(loaded, lane, moment, now.of, asked.seconds, tell=tell)
    except (ConfigProblem, TooLong):
        raise
    except Fatal as unable:
        found = _at(version.number, lane, reader, now) if version is not None and version.ahead else None
        if version is None or found is None:
            raise
        tell(
            f"{name}: version {version.number}, with columns of later records; the event log cannot tell: {unable.sentence}"
        )
        return found


def _at(version: int, lane: LaneSettings, reader: Any, now: Asked) -> pa.Table | None:
    """The rows that are asked for at a version; None where they are gone."""
    try:
        return replace(now, version=version).of(reader, lane.into)
    except (ConfigProblem, TooLong):
        raise  # What is asked makes no sense, of then or of now.
    except Fatal:
        return None


def _candidates(loaded: Loaded, name: str) -> Iterator[tuple[str, str]]:
    """Sinks and tables that a name may mean."""
    settings = loaded.settings
    for lane in settings.lanes_for(name):
        yield lane.sink, lane.into
    for sink in settings.sinks:
        yield sink, name
    schema, _, table = name.rpartition(".")
    for sink, options in settings.sinks.items():
        if schema and schema == plain_options(options).get("schema"):
            yield sink, table


def _unknown(name: str, seen: Mapping[str, Sequence[str]]) -> ConfigProblem:
    known = [f"{sink}.{table}" for sink, tables in seen.items() for table in tables]
    near = did_you_mean(name.rpartition(".")[2], {table for tables in seen.values() for table in tables})
    near = near or did_you_mean(name, known)
    listing = "`replicator lanes list` names the targets seen so far; `replicator status` says how far they are."
    return ConfigProblem(f"no sink holds a table {name!r}", next_step=f"{near[:1].upper()}{near[1:]} {listing}".strip())


def _split(loaded: Loaded, name: str) -> tuple[str | None, str]:
    """A sink and a table, when the name begins with a sink's; a table may be named as in the source."""
    sink, dot, table = name.partition(".")
    if not dot or sink not in loaded.settings.sinks:
        return None, name
    into = (lane.into for lane in loaded.settings.lanes_for(table) if lane.sink == sink and lane.into != table)
    return sink, next(into, table) if "." in table else table


@contextmanager
def _reader(loaded: Loaded, name: str) -> Iterator[Reader]:
    if name not in loaded.settings.sinks:
        raise ConfigProblem(f"there is no sink {name!r}", next_step=f"There are: {', '.join(loaded.settings.sinks)}.")
    with closing(cast(Any, adapters.sink(loaded, name))) as sink:
        if isinstance(loaded.settings.sinks[name], EventStoreSinkSettings):
            raise ConfigProblem(
                "the store of events is not queried by table",
                next_step="`replicator events TYPE [ID]` shows its events; its folder or table can be read with SQL.",
            )
        if not hasattr(sink, "read"):
            raise ConfigProblem(f"sink {name!r} cannot be queried", next_step="Read its files or its table with SQL.")
        yield sink


def _tables(reader: Reader) -> list[str]:
    """The tables of a sink; none for one that is no reader, such as an event log."""
    if not hasattr(reader, "tables"):
        return []
    try:
        return list(reader.tables())
    except Fatal:
        return []
