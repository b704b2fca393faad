"""Reading targets by name, for the command line and for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.ports.reader import Reader
from replicator.settings import Loaded, plain_options
from replicator.settings.nearest import did_you_mean

from . import adapters


def read(
    loaded: Loaded,
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | None = None,
    where: str | None = None,
    limit: int | None = None,
) -> pa.Table:
    """The rows of a target. `name` is `SINK.TABLE`, or the table's name in the source, or `TABLE` in the first sink of the
    config that has it, or `SCHEMA.TABLE` of a PostgreSQL sink."""

    def rows(reader: Any, table: str) -> pa.Table:
        return reader.read(table, version=version, as_of=as_of, where=where, limit=limit)

    sink, table = _split(loaded, name)
    if sink is not None:
        with _reader(loaded, sink) as reader:
            return rows(reader, table)
    seen: dict[str, list[str]] = {}
    for candidate, table in _candidates(loaded, name):
        with closing(cast(Any, adapters.sink(loaded, candidate))) as reader:
            if candidate not in seen:
                seen[candidate] = _tables(reader)
            if table in seen[candidate]:
                return rows(reader, table)
    raise _unknown(name, seen)


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


def _unknown(name: str, seen: Mapping[str, Sequence[str]]) -> Fatal:
    known = [f"{sink}.{table}" for sink, tables in seen.items() for table in tables]
    near = did_you_mean(name.rpartition(".")[2], {table for tables in seen.values() for table in tables})
    near = near or did_you_mean(name, known)
    listing = "`replicator lanes list` names the targets seen so far; `replicator status` says how far they are."
    return Fatal(f"no sink holds a table {name!r}", next_step=f"{near[:1].upper()}{near[1:]} {listing}".strip())


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
