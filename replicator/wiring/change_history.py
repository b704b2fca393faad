"""The history of rows in an event log: builds the reader of a table's log, and selects the changes of a key."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from replicator.application.operations.change_log_reader import ChangeLogReader, ChangeLogResult, Report
from replicator.application.table_rules import make_event_log_lane
from replicator.domain.audit import AUDIT, build_audit
from replicator.domain.change import OP, Op
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.read_query import InvalidReadQuery, parse_value
from replicator.domain.table import TableSpec
from replicator.domain.timeline import HistoryEntry, build_timeline, find_old_keys
from replicator.domain.topics import TopicFilter
from replicator.ports.backfill import TOPICS
from replicator.ports.frames import Stop
from replicator.settings import Loaded
from replicator.settings.sinks import EventLogSettings

from . import adapters, build
from .plugins import load_adapter

LAKE_TRANSPORT, DATABASE_TRANSPORT = "delta", "postgres_log"
NO_PERIOD: Mapping[str, str] = {}
BACKFILLS = f"{TOPICS}*"
"""Topics of backfills. The log contains them, too."""


def read_history(
    loaded: Loaded, table: str, key: Sequence[str], tell: Report, stop: Stop | None = None
) -> tuple[list[HistoryEntry], ChangeLogResult]:
    """The changes of one row of `table` (its source name), and the counts of the read. `key`: one text per key
    column.

    The log is read once, and again for earlier keys of the row, until `stop` is set. ConfigProblem without an event
    log of the table. InvalidReadQuery for a key that does not fit it.
    """
    wanted: list[tuple[Any, ...]] = []
    known: set[tuple[Any, ...]] = set()
    frames: list[tuple[pa.Table, TableSpec]] = []

    def take(changes: pa.Table, schema: TableSpec, _: pa.Table) -> None:
        keys = wanted or [tuple(value.as_py() for value in parse_key(schema, key))]
        known.update(keys)
        found = changes.filter(_match_keys(changes, schema, keys))
        if found.num_rows:
            frames.append((found, schema))

    with open_reader(loaded, table) as log:
        read = log.read_changes(table, take, tell, stop)
        if not known:
            raise Fatal(
                f"the event log has no changes of table {table}" + (", only rejected ones" if read.rejected else ""),
                next_step="Name the table as its source calls it (`replicator plan` lists them), or look at `dlq list`.",
            )
        asked = frozenset(known)  # Several if the type of the key has changed.
        while fresh := find_old_keys(frames) - known:
            wanted[:] = fresh
            log.read_changes(table, take, tell, stop)
    entries = [entry for one in asked for entry in build_timeline(frames, one)]
    return sorted(entries, key=lambda entry: (entry.sequence, entry.topic, entry.partition, entry.offset)), read


def read_audit(
    loaded: Loaded, table: str, period: Mapping[str, str], tell: Report, by: str | None = None
) -> tuple[pa.Table, ChangeLogResult]:
    """The changes of `table` (its source name) as `domain.audit.AUDIT`, ordered by time, topic, partition and
    offset.

    `period`: `since` and `until`, times at the source as ISO text. `by`: the column with the user who made the
    change. ConfigProblem without an event log of the table, and for an unknown column.
    """
    frames = [AUDIT.empty_table()]

    def take(changes: pa.Table, schema: TableSpec, raw: pa.Table) -> None:
        frames.append(build_audit(changes, schema, log.decoder.envelope(raw), raw, by))

    with open_reader(loaded, table, period) as log:
        read = log.read_changes(table, take, tell)
    if by is not None and read.table is not None and by not in read.table.column_names:
        raise ConfigProblem(
            f"table {table} has no column {by!r}", next_step=f"Its columns are: {', '.join(read.table.column_names)}."
        )
    order = [(name, "ascending") for name in ("at", "topic", "partition", "offset")]
    return pa.concat_tables(frames).sort_by(order), read


@contextmanager
def open_reader(loaded: Loaded, table: str, period: Mapping[str, str] = NO_PERIOD) -> Iterator[ChangeLogReader]:
    """A reader of the event log of `table`, within a period."""
    local = _use_local_engine(loaded)
    name, sink = find_log(local, table)
    with open_log(local, name, sink, **period) as source:
        yield ChangeLogReader(
            source, adapters.build_decoder(local, name), adapters.build_engine(local), build.build_rules_for(local, name)
        )


@contextmanager
def open_log(loaded: Loaded, source: str, sink: str, only: Collection[str] = (), **period: str) -> Iterator[Any]:
    """The event log in `sink` as a source of the records of `source`, in this process, within a period. `only`: see
    `make_log_options`."""
    local = _use_local_engine(loaded)
    options = {**make_log_options(local, source, sink, only), **period, "batch_bytes": adapters.compute_batch_bytes(local)}
    with closing(load_adapter("replicator.sources", get_log_transport(local, sink))(options)) as opened:
        yield opened


def _use_local_engine(loaded: Loaded) -> Loaded:
    return replace(loaded, settings=loaded.settings.model_copy(update={"engine": adapters.LOCAL}))


def find_log(loaded: Loaded, table: str) -> tuple[str, str]:
    """The source of a table, and its first event log. Logs in a lake are first: they need no server. ConfigProblem
    without one."""
    settings = loaded.settings
    found = [
        (name, sink)
        for name in settings.sources
        if settings.find_table(table, name) is not None
        for sink in settings.list_table_event_logs(table, name)
    ]
    if not found:
        known = [name for name in settings.sources if settings.find_table(table, name) is not None]
        if not known:
            raise ConfigProblem(
                f"no entry of `tables` matches {table!r}", next_step="Name the table as its source calls it: SCHEMA.TABLE."
            )
        raise ConfigProblem(
            f"table {table} goes to no event log, and only that keeps what its rows were",
            next_step="Add a sink of `kind: event_log`, and to the table's `to`: `- {sink: NAME}`.",
        )
    return next((one for one in found if get_log_transport(loaded, one[1]) == LAKE_TRANSPORT), found[0])


def get_log_transport(loaded: Loaded, sink: str) -> str:
    """The transport that reads an event log."""
    return LAKE_TRANSPORT if "path" in get_log_location(loaded, sink) else DATABASE_TRANSPORT


def get_log_location(loaded: Loaded, sink: str) -> dict[str, Any]:
    """The location options of an event log, with secrets in clear. Empty for another kind of sink."""
    settings = loaded.settings.sinks[sink]
    if not isinstance(settings, EventLogSettings):
        return {}
    said = adapters.list_options(settings)
    return {key: said[key] for key in ("path", "storage", "dsn") if key in said}


def get_log_folder(loaded: Loaded, sink: str) -> str | None:
    """The folder of an event log. None if it is not a folder of this machine."""
    path = get_log_location(loaded, sink).get("path")
    return None if path is None or "://" in str(path) else str(path)


def make_log_options(loaded: Loaded, source: str, sink: str, only: Collection[str] = ()) -> dict[str, Any]:
    """The location of the log in `sink`, and its topics that belong to `source`.

    Other sources may write to the log too, and the decoder of this one could misread their records. `only`:
    restricts the topics, if the log has any of these.
    """
    topics = getattr(loaded.settings.sources[source], "topics", None)
    wanted = [*topics, BACKFILLS] if topics else ["*"]
    written = sorted(filter(TopicFilter(wanted), _list_written_topics(loaded, source, sink)))
    written = [topic for topic in written if topic in only] or written
    return {**get_log_location(loaded, sink), "topics": [f"^{re.escape(topic)}\\Z" for topic in written] or wanted}


def _list_written_topics(loaded: Loaded, source: str, sink: str) -> set[str]:
    """The topics of `source` in the log. Empty if unknown."""
    with closing(cast(Any, adapters.build_sink(loaded, sink))) as log:
        state = log.state(make_event_log_lane(loaded.settings.pipeline, source, sink))
    return set() if state is None else {place.topic for place in state.position}


def _match_keys(changes: pa.Table, table: TableSpec, keys: Iterable[tuple[Any, ...]]) -> pa.Array:
    """A mask of the changes of rows with these keys, and of truncates."""
    found = pc.equal(changes[OP], Op.TRUNCATE.value)
    for key in keys:
        mine: Any = True
        for name, value in zip(table.keys, key, strict=True):
            equal = pc.equal(changes[name], pa.scalar(value, table.column(name).type))
            mine = pc.and_(mine, pc.fill_null(equal, False))
        found = pc.or_(found, mine)
    return found


def parse_key(table: TableSpec, key: Sequence[str]) -> Iterator[pa.Scalar]:
    """The values of a key, from one text per column. InvalidReadQuery for a wrong number of texts, or a text of
    another type."""
    if not table.keys:
        raise InvalidReadQuery(
            f"table {table.name} has no key, so none of its rows can be told from the others",
            next_step="Say `keys` in its entry under `tables`.",
        )
    if len(key) != len(table.keys):
        raise InvalidReadQuery(
            f"the key of table {table.name} has {len(table.keys)} columns ({', '.join(table.keys)}), not {len(key)}",
            next_step="Give a value for each, in this order.",
        )
    for name, text in zip(table.keys, key, strict=True):
        yield _parse_value(name, text, table.column(name).type)


def _parse_value(name: str, text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        return parse_value(text, kind)
    except ValueError:
        raise InvalidReadQuery(
            f"{text!r} is no {kind}, which key column {name} is", next_step="Write it as `query` shows it."
        ) from None
