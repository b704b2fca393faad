"""Reading targets by name, for the command line and for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.ports.reader import Reader
from replicator.settings import Loaded

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
    """The rows of a target. `name` is `SINK.TABLE`, or `TABLE` in the first sink of the config that has it."""
    sink, table = _split(loaded, name)
    if sink is not None:
        with _reader(loaded, sink) as reader:
            return reader.read(table, version=version, as_of=as_of, where=where, limit=limit)
    for candidate in loaded.settings.sinks:
        with closing(cast(Any, adapters.sink(loaded, candidate))) as reader:
            if table in _tables(reader):
                return reader.read(table, version=version, as_of=as_of, where=where, limit=limit)
    raise Fatal(
        f"no sink holds a table {name!r}",
        next_step="`replicator lanes list` names the targets seen so far; `replicator status` says how far they are.",
    )


def _split(loaded: Loaded, name: str) -> tuple[str | None, str]:
    sink, dot, table = name.partition(".")
    return (sink, table) if dot and sink in loaded.settings.sinks else (None, name)


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
