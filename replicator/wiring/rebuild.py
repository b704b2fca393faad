"""The configuration of a rebuild: a pipeline of one lane with the event log as its source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from pydantic import PrivateAttr

from replicator.ports.components import RebuildRequest
from replicator.ports.frames import Lane
from replicator.ports.options import Dsn, LakePath, StorageSettings, Topic
from replicator.settings import LaneSettings, Loaded
from replicator.settings.sinks import DeadLetterSettings, DeltaSettings
from replicator.settings.sources import SourceSettings
from replicator.settings.tables import NO_RETENTION, TableSettings

from . import adapters
from .event_logs import find_log, get_log_transport, make_log_options

PLAIN_LAKE_OPTIONS: Mapping[str, Any] = {
    "partition_by": (),
    "cluster_by": (),
    "change_data_feed": False,
    "deletion_vectors": False,
    "tombstone_retention": NO_RETENTION,
}
"""Options of the entry of a rebuild in a temporary lake. The physical layout does not change rows, and tombstones are
kept."""


class LogSettings(SourceSettings):
    """An event log as a source: always read as topics, and decoded like the recorded source."""

    transport: str
    path: LakePath | None = None
    storage: StorageSettings | None = None
    dsn: Dsn | None = None
    topics: list[Topic] | None = None
    since: str | None = None
    until: str | None = None
    below: dict[str, dict[str, int]] | None = None
    """The end of the log for this reader."""
    part: bool | None = None
    """True if only part of the records is requested, so that removed records do not matter."""
    _recorded: SourceSettings = PrivateAttr()

    @classmethod
    def from_source(cls, recorded: SourceSettings, **more: Any) -> LogSettings:
        """The log of the source `recorded`. `more`: the log's own keys."""
        said = {name: getattr(recorded, name) for name in SourceSettings.model_fields}
        made = cls.model_construct(**{**said, "transactions": None, **more})
        made._recorded = recorded
        return made

    @property
    def has_tombstones(self) -> bool:
        return self._recorded.has_tombstones

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._recorded.for_decoder(said)


def configure_log(loaded: Loaded, request: RebuildRequest, topics: Collection[str], entry: Mapping[str, Any]) -> Loaded:
    """The configuration of the one lane that builds the target of the request from the event log. It has its own state
    folder, so another call resumes.

    `topics`: those of the table's records, if known. `entry`: keys that replace those of the lane's entry.
    """
    lane = find_lane_settings(loaded, request.lane)
    _, log = find_log(loaded, lane.table)
    times = {name: value for name in ("since", "until", "below") if (value := getattr(request, name)) is not None}
    place = {
        **make_log_options(loaded, lane.source, log, topics),
        **({"part": True} if request.since is not None else {}),
    }
    # From the config, where secrets are masked.
    place |= {name: getattr(loaded.settings.sinks[log], name, None) for name in ("storage", "dsn")}
    recorded, transport = loaded.settings.sources[lane.source], get_log_transport(loaded, log)
    from_log = LogSettings.from_source(recorded, transport=transport, **place, **times)
    folder = adapters.get_state_folder(loaded) / "replays" / quote(request.id, safe="")
    settings = loaded.settings.model_copy(
        update={
            "sources": {**loaded.settings.sources, lane.source: from_log},
            "tables": [_make_table(loaded, lane, request, entry)],
            "state": folder,
            "erasures": str(adapters.get_erasures_folder(loaded)),
            **({"dead_letters": DeadLetterSettings.model_construct(path=str(folder / "rejected"))} if request.apart else {}),
        }
    )
    return replace(loaded, settings=settings, origins=_make_origins(loaded, lane))


def configure_lake(loaded: Loaded, sink: str, folder: Path) -> Loaded:
    """The configuration in which `sink` is a lake below `folder`, where state and dead letters are, too."""
    lake = DeltaSettings.model_construct(kind="delta", path=str(folder / "lake"))
    more = {
        "engine": adapters.LOCAL,
        "state": folder / "state",
        "erasures": str(adapters.get_erasures_folder(loaded)),
        "sinks": {**loaded.settings.sinks, sink: lake},
        "dead_letters": DeadLetterSettings.model_construct(path=str(folder / "dead_letters")),
        "max_rejects": None,
    }
    return replace(loaded, settings=loaded.settings.model_copy(update=more))


def configure_records(loaded: Loaded, lane: Lane, folder: Path, into: str, where: str = "") -> Loaded:
    """The configuration of a pipeline that makes the current rows of the lane's table from an archive, `folder`/records. The
    target `into` is in a lake below `folder`. No reject stops it. `where`: a condition, in addition to that of the lane."""
    said = find_lane_settings(loaded, lane)
    own: dict[str, Any] = {"deletes": "hard", "track_history_column_list": None, "track_history_except_column_list": None}
    if where:
        _, table_at, _, entry_at = said.at
        table = loaded.settings.tables[cast(int, table_at)]
        kept = table.to[cast(int, entry_at)].where or table.where or loaded.settings.defaults.where
        own["where"] = f"({kept}) and ({where})" if kept else where
    lake = configure_lake(loaded, lane.sink, folder)
    source = LogSettings.from_source(loaded.settings.sources[lane.source], transport="archive", path=str(folder / "records"))
    made = _make_table(loaded, said, RebuildRequest(lane, into, policy="scd1"), {**PLAIN_LAKE_OPTIONS, **own})
    update = {
        "sources": {**loaded.settings.sources, lane.source: source},
        "tables": [made.model_copy(update={"on_reject": "continue"})],
    }
    settings = lake.settings.model_copy(update=update)
    return replace(lake, settings=settings, origins=_make_origins(loaded, said))


def find_lane_settings(loaded: Loaded, lane: Lane) -> LaneSettings:
    """The settings of a configured lane."""
    lanes = loaded.settings.resolve_lanes(lane.table, lane.source)
    return next(one for one in lanes if (one.sink, one.into) == (lane.sink, lane.into))


def _make_table(loaded: Loaded, lane: LaneSettings, request: RebuildRequest, others: Mapping[str, Any]) -> TableSettings:
    """The config entry of the lane, for its table alone, with the replaced keys."""
    _, table_at, _, entry_at = lane.at
    table = loaded.settings.tables[cast(int, table_at)]
    more = {"policy": request.policy, "stored_as_scd_type": None} if request.policy else {}
    entry = table.to[cast(int, entry_at)].model_copy(update={"into": request.into, **more, **others})
    return table.model_copy(update={"match": lane.table, "to": [entry]})


def _make_origins(loaded: Loaded, lane: LaneSettings) -> Any:
    """The config lines of the entry, moved to its new path."""
    _, table_at, _, entry_at = lane.at
    moved = {
        ("tables", 0, "to", 0, *path[4:]) if path[2:4] == ("to", entry_at) else ("tables", 0, *path[2:]): origin
        for path, origin in loaded.origins.items()
        if path[:2] == ("tables", table_at) and (path[2:3] != ("to",) or path[2:4] in (("to",), ("to", entry_at)))
    }
    return {**{path: origin for path, origin in loaded.origins.items() if path[:1] != ("tables",)}, **moved}
