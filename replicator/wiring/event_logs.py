"""The event logs of a configuration: finds the log of a table, and opens it for reading."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, cast

from replicator.application.operations.change_history import ChangeLogReader
from replicator.domain.errors import ConfigProblem
from replicator.domain.patterns import TopicFilter
from replicator.ports.adapter_options import LogSinkOptions
from replicator.ports.components import make_event_log_lane
from replicator.ports.source import BACKFILL_TOPICS
from replicator.settings import Loaded

from . import adapters, build

NO_PERIOD: Mapping[str, str] = {}
BACKFILLS = f"{BACKFILL_TOPICS}*"
"""Topics of backfills. The log contains them, too."""


@contextmanager
def open_reader(loaded: Loaded, table: str, period: Mapping[str, str] = NO_PERIOD) -> Iterator[ChangeLogReader]:
    """A reader of the event log of `table`, within a period."""
    name, sink = find_log(loaded, table)
    engine = adapters.build_engine(loaded, adapters.LOCAL)
    with closing(open_log(loaded, name, sink, **period)) as source:
        yield ChangeLogReader(source, adapters.build_decoder(loaded, name), engine, build.build_rules_for(loaded, name))


def open_log(loaded: Loaded, source: str, sink: str, only: Collection[str] = (), **period: str) -> Any:
    """The event log in `sink` as a source of the records of `source`, in this process, within a period. `only`: see
    `make_log_options`."""
    options = {**make_log_options(loaded, source, sink, only), **period, "batch_bytes": adapters.compute_batch_bytes(loaded)}
    return adapters.open_transport(loaded, source, get_log(loaded, sink).reader, options, engine=adapters.LOCAL)


def find_log(loaded: Loaded, table: str) -> tuple[str, str]:
    """The source of a table, and its first event log. Logs in a lake are first: they need no server. ConfigProblem
    without one."""
    settings = loaded.settings
    logs = [
        (name, sink)
        for name in settings.sources
        if settings.find_table(table, name) is not None
        for sink in settings.list_table_event_logs(table, name)
    ]
    if not logs:
        sources = [name for name in settings.sources if settings.find_table(table, name) is not None]
        if not sources:
            raise ConfigProblem(
                f"no entry of `tables` matches {table!r}", next_step="Use the table's name at the source: SCHEMA.TABLE."
            )
        raise ConfigProblem(
            f"table {table} has no event log, which is the only place with earlier versions of its rows",
            next_step="Add a sink of `kind: event_log`, and to the table's `to`: `- {sink: NAME}`.",
        )
    return next((one for one in logs if not get_log(loaded, one[1]).is_in_database), logs[0])


def get_log(loaded: Loaded, sink: str) -> LogSinkOptions:
    """The options of the event log in `sink`."""
    return cast(LogSinkOptions, loaded.settings.sinks[sink])


def make_log_options(loaded: Loaded, source: str, sink: str, only: Collection[str] = ()) -> dict[str, Any]:
    """The location of the log in `sink`, and its topics that belong to `source`.

    Other sources may write to the log too, and the decoder of this one could misread their records. `only`:
    restricts the topics, if the log has any of these.
    """
    topics = getattr(loaded.settings.sources[source], "topics", None)
    wanted = [*topics, BACKFILLS] if topics else ["*"]
    written = sorted(filter(TopicFilter(wanted), _list_written_topics(loaded, source, sink)))
    written = [topic for topic in written if topic in only] or written
    log = get_log(loaded, sink)
    patterns = [f"^{re.escape(topic)}\\Z" for topic in written]
    return {**log.for_reader(adapters.list_options(log)), "topics": patterns or wanted}


def _list_written_topics(loaded: Loaded, source: str, sink: str) -> set[str]:
    """The topics of `source` in the log. Empty if unknown."""
    with closing(adapters.build_sink(loaded, sink)) as log:
        state = log.state(make_event_log_lane(loaded.settings.pipeline, source, sink))
    return set() if state is None else {partition.topic for partition in state.position}
