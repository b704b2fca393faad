"""The event logs of a configuration: finds and opens the log of a table, and makes the inputs of a rebuild from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from replicator.application.operations.change_history import ChangeLogReader
from replicator.domain.errors import ConfigProblem
from replicator.domain.patterns import TopicFilter
from replicator.ports.adapter_options import LogSinkOptions
from replicator.ports.components import RebuildRequest, TableRules, make_event_log_lane
from replicator.ports.frames import Lane
from replicator.ports.options import NO_RETENTION
from replicator.ports.source import BACKFILL_TOPICS, Source
from replicator.settings import LaneSettings, Loaded

from . import adapters, build
from .build import PipelineInput

NO_PERIOD: Mapping[str, str] = {}
BACKFILLS = f"{BACKFILL_TOPICS}*"
"""Topics of backfills. The log contains them, too."""


@contextmanager
def open_reader(loaded: Loaded, table: str, period: Mapping[str, str] = NO_PERIOD) -> Iterator[ChangeLogReader]:
    """A reader of the event log of `table`, within a period."""
    name, sink = find_log(loaded, table)
    engine = adapters.build_engine(loaded, adapters.LOCAL)
    with closing(open_log(loaded, name, sink, **period)) as source:
        yield ChangeLogReader(source, adapters.build_safe_decoder(loaded, name), engine, build.build_rules_for(loaded, name))


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
    with closing(adapters.build_sink(loaded, sink)) as target:
        state = target.state(make_event_log_lane(loaded.settings.pipeline, source, sink))
    stored = {partition.topic for partition in state.position} if state is not None else set()
    written = sorted(filter(TopicFilter(wanted), stored))
    written = [topic for topic in written if topic in only] or written
    log = get_log(loaded, sink)
    patterns = [f"^{re.escape(topic)}\\Z" for topic in written]
    return {**log.for_reader(adapters.list_options(log)), "topics": patterns or wanted}


# The inputs of a rebuild: the records of an event log or of an archive, and one lane with another target.

PLAIN_LAKE_OPTIONS: Mapping[str, Any] = {
    "partition_by": (),
    "cluster_by": (),
    "change_data_feed": False,
    "deletion_vectors": False,
    "tombstone_retention": NO_RETENTION,
}
"""Keys of the lane of a rebuild in a temporary lake. The physical layout does not change rows, and tombstones are kept."""
CURRENT_ROWS: Mapping[str, Any] = {
    "deletes": "hard",
    "track_history_column_list": None,
    "track_history_except_column_list": None,
}
"""Keys of a lane whose target is compared with the current rows of a table."""


def open_log_records(
    loaded: Loaded, request: RebuildRequest, topics: Collection[str], engine: str
) -> Callable[[], Source[Any]]:
    """Opens the event log of the request's table, for the records that the request asks for. `topics`: those of the table's
    records, if known."""
    source = request.lane.source
    _, log = find_log(loaded, request.lane.table)
    times = {name: value for name in ("since", "until", "below") if (value := getattr(request, name)) is not None}
    options = {
        **make_log_options(loaded, source, log, topics),
        **times,
        # Removed records do not matter to a part of the log.
        **({"part": True} if request.since is not None else {}),
        "batch_bytes": adapters.compute_batch_bytes(loaded, sinks=1),
    }
    return partial(adapters.open_transport, loaded, source, get_log(loaded, log).reader, options, engine)


def open_archive(loaded: Loaded, source: str, folder: Path) -> Callable[[], Source[Any]]:
    """Opens records of the source that are files in a folder of this machine."""
    options = {"path": str(folder), "batch_bytes": adapters.compute_batch_bytes(loaded, sinks=1)}
    return partial(adapters.open_transport, loaded, source, "archive", options, adapters.LOCAL)


def make_input(
    loaded: Loaded,
    request: RebuildRequest,
    open_records: Callable[[], Source[Any]],
    keys: Mapping[str, Any],
    *,
    on_reject: str | None = None,
) -> PipelineInput:
    """Other records of the source of a lane, decoded like its own, and the lane that builds the target of the request.

    `keys`: in place of those of the lane's entry in the config. `on_reject`: in place of that of its table. There are no
    backfills besides.
    """
    settings, source, table = loaded.settings, request.lane.source, request.lane.table
    policy = {"policy": request.policy, "stored_as_scd_type": None} if request.policy else {}
    lane_settings = settings.resolve_changed_lane(find_lane_settings(loaded, request.lane), {**policy, **keys})
    reaction = on_reject or settings.get_on_reject(table, source)
    lane = replace(
        adapters.build_lane(loaded, lane_settings),
        id=request.id,
        into=request.into,
        refused="",
        pattern="",
        stops=reaction == "stop_lane",
    )
    masks = adapters.find_masks(loaded, table, source)
    rules = TableRules((lane,), lane.keys, on_reject=reaction, masks=masks)
    return PipelineInput(
        source,
        open_records,
        partial(adapters.build_safe_decoder, loaded, source),
        rules_for={table: rules}.get,
        sinks=(lane.sink,),
        is_private=adapters.is_private(loaded, source),
        on_reject=settings.on_reject,
    )


def add_condition(loaded: Loaded, lane: Lane, where: str) -> dict[str, Any]:
    """The keys of a lane with a condition in addition to its own."""
    if not where:
        return {}
    _, table_at, _, entry_at = find_lane_settings(loaded, lane).at
    table = loaded.settings.tables[cast(int, table_at)]
    own = table.to[cast(int, entry_at)].where or table.where or loaded.settings.defaults.where
    return {"where": f"({own}) and ({where})" if own else where}


def find_lane_settings(loaded: Loaded, lane: Lane) -> LaneSettings:
    """The settings of a configured lane."""
    lanes = loaded.settings.resolve_lanes(lane.table, lane.source)
    return next(one for one in lanes if (one.sink, one.into) == (lane.sink, lane.into))
