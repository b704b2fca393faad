"""Rebuilds a target from the event log: configures a pipeline of one lane with the log as its source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from pydantic import PrivateAttr

from replicator.application.operations.drop import get_rebuild_folder
from replicator.application.operations.lanes import list_lanes
from replicator.domain.errors import ConfigProblem
from replicator.settings import LaneSettings, Loaded
from replicator.settings.fields import Dsn, LakePath, Topic, describe_target_problem
from replicator.settings.sinks import DeadLetterSettings
from replicator.settings.sources import SourceSettings
from replicator.settings.storage import StorageSettings
from replicator.settings.tables import Policy, TableSettings

from . import adapters
from .components import ConfiguredComponents
from .event_logs import DATABASE_TRANSPORT, find_log, get_log_transport, make_log_options

REQUEST_FILE = "asked.json"
SPILL_FOLDER = "laid"
"""The folder in the state of a rebuild for spill files, until the one commit of a new target."""
BEGIN_FILE = "begun"
"""The folder of a checkpoint copy while its content is copied into a target."""


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """A target `into`, next to that of the lane `lane`, to build from the event log.

    - `policy`: another policy than that of the lane.
    - `since`, `until`: only records in this period (times at the source, ISO text with a zone), if they have a
      time.
    - `below`: only records below this position (as JSON).
    """

    lane: LaneSettings
    into: str
    policy: Policy | None = None
    since: str | None = None
    until: str | None = None
    below: dict[str, dict[str, int]] | None = None
    apart: str = ""
    """A digest of the config, for a target that no lane has. If set, rejected records are stored separately."""

    @property
    def id(self) -> str:
        """The id of the lane that builds it."""
        return f"{self.lane.sink}.{self.into}"


class LogSettings(SourceSettings):
    """An event log as a source: read as topics, whatever its format, and decoded like the recorded source."""

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


def find_lane(loaded: Loaded, table: str, lane: str | None) -> LaneSettings:
    """The lane `lane` of a table (its source name), or the only one. ConfigProblem for none, and for several."""
    every = {f"{one.sink}.{one.into}": one for one in loaded.settings.resolve_lanes(table)}
    if lane in every and not every[lane].is_mirror:
        raise ConfigProblem(
            f"{lane} numbers events in the store of events, which is not made anew: what is stored keeps its version",
            next_step=f"What it lacks `replicator lanes resync {lane}` reads again; events that are stored change nothing.",
        )
    mine = {name: one for name, one in every.items() if one.is_mirror}
    names = ", ".join(mine) or "none"
    if lane is not None and lane not in mine:
        raise ConfigProblem(f"table {table} has no lane {lane!r}", next_step=f"Its lanes are: {names}.")
    if not mine:
        raise ConfigProblem(
            f"no entry of `tables` brings {table!r} into a target that can be made anew",
            next_step="Name the table as its source calls it: SCHEMA.TABLE.",
        )
    if lane is None and len(mine) > 1:
        raise ConfigProblem(f"table {table} has several lanes", next_step=f"Name one with `--lane`: {names}.")
    return mine[lane] if lane is not None else next(iter(mine.values()))


def prepare_rebuild(
    loaded: Loaded, request: RebuildRequest, topics: Collection[str] = (), *, from_scratch: bool = False, **entry: Any
) -> Loaded:
    """The configuration that builds the target. It has its own state folder, so another call resumes.

    - `topics`: the topics of the table's records, if known.
    - `from_scratch`: ignore an earlier request.
    - `entry`: keys that replace those of the lane's entry.

    ConfigProblem if the event log cannot be read, or the name belongs to another lane or owner. Also if the target
    was started with other options.
    """
    _, log = find_log(loaded, request.lane.table)
    _refuse_engine(loaded, log)
    _refuse_name(loaded, request)
    folder = get_folder(loaded, request)
    _write_request(loaded, request, folder, from_scratch=from_scratch)
    times = {name: value for name in ("since", "until", "below") if (value := getattr(request, name)) is not None}
    place = {
        **make_log_options(loaded, request.lane.source, log, topics),
        **({"part": True} if request.since is not None else {}),
    }
    # From the config, where secrets are masked.
    place |= {name: getattr(loaded.settings.sinks[log], name, None) for name in ("storage", "dsn")}
    recorded, transport = loaded.settings.sources[request.lane.source], get_log_transport(loaded, log)
    from_log = LogSettings.from_source(recorded, transport=transport, **place, **times)
    settings = loaded.settings.model_copy(
        update={
            "sources": {**loaded.settings.sources, request.lane.source: from_log},
            "tables": [_make_table(loaded, request, entry)],
            "state": folder,
            "erasures": str(adapters.open_erasure_list(loaded).path.parent),
            **({"dead_letters": DeadLetterSettings.model_construct(path=str(folder / "rejected"))} if request.apart else {}),
        }
    )
    return replace(loaded, settings=settings, origins=_make_origins(loaded, request))


def get_folder(loaded: Loaded, request: RebuildRequest) -> Path:
    """The state folder of the rebuild on this machine."""
    return get_rebuild_folder(ConfiguredComponents(loaded), request.id)


def _refuse_engine(loaded: Loaded, log: str) -> None:
    engine = loaded.settings.engine
    if engine != adapters.LOCAL and get_log_transport(loaded, log) == DATABASE_TRANSPORT:
        raise ConfigProblem(
            f"the event log {log} is in a database, from where the engine {engine!r} does not read it "
            f"({loaded.describe_origin('sinks', log)})",
            next_step="Keep an event log in a lake (`path`) beside it, or use `engine: local`.",
        )


def _refuse_name(loaded: Loaded, request: RebuildRequest) -> None:
    """The name must be valid, and no target of a lane: configured, or created by a pattern."""
    why = describe_target_problem(request.into) or ("cannot be made of groups" if "{" in request.into else None)
    if why:
        raise ConfigProblem(f"the new target's name {request.into!r} {why}", next_step="Choose another name.")
    named = [
        lane for table in loaded.settings.tables for lane in loaded.settings.resolve_entry_lanes(table, request.lane.table)
    ]
    taken = {f"{one.sink}.{one.into}": adapters.get_config_line(loaded, one) for one in named}
    taken |= {one.id: one.config_line for one in list_lanes(ConfiguredComponents(loaded))}
    if request.id in taken:
        raise ConfigProblem(
            f"{request.id} is a target of the config ({taken[request.id]})",
            next_step="Replay into another name, compare, and then choose.",
        )


def _write_request(loaded: Loaded, request: RebuildRequest, folder: Path, *, from_scratch: bool) -> None:
    """Store the request next to the state. Files of a target that no longer exists are removed."""
    said = {**asdict(request), "lane": f"{request.lane.sink}.{request.lane.into}"}
    said = {name: value for name, value in said.items() if value or name not in {"apart", "below"}}
    file, is_there = folder / REQUEST_FILE, _has_target(loaded, request)
    if not is_there:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        file.write_text(json.dumps(said), encoding="utf-8")
    elif from_scratch:
        file.write_text(json.dumps(said), encoding="utf-8")
    elif not file.exists():
        raise ConfigProblem(
            f"{request.id} is there already, and no replay on this machine has made it", next_step="Choose another name."
        )
    elif json.loads(file.read_text(encoding="utf-8")) != said:
        raise ConfigProblem(
            f"{request.id} was begun with other options",
            next_step=f"Repeat them, name another target, or begin anew after `replicator drop {request.id}`.",
        )


def _has_target(loaded: Loaded, request: RebuildRequest) -> bool:
    with closing(cast(Any, adapters.build_sink(loaded, request.lane.sink))) as sink:
        return request.into in sink.tables()


def _make_table(loaded: Loaded, request: RebuildRequest, others: Mapping[str, Any]) -> TableSettings:
    """The config entry of the lane, for its table alone, with the replaced keys."""
    _, table_at, _, entry_at = request.lane.at
    table = loaded.settings.tables[cast(int, table_at)]
    more = {"policy": request.policy, "stored_as_scd_type": None} if request.policy else {}
    entry = table.to[cast(int, entry_at)].model_copy(update={"into": request.into, **more, **others})
    return table.model_copy(update={"match": request.lane.table, "to": [entry]})


def _make_origins(loaded: Loaded, request: RebuildRequest) -> Any:
    """The config lines of the entry, moved to its new path."""
    _, table_at, _, entry_at = request.lane.at
    moved = {
        ("tables", 0, "to", 0, *path[4:]) if path[2:4] == ("to", entry_at) else ("tables", 0, *path[2:]): origin
        for path, origin in loaded.origins.items()
        if path[:2] == ("tables", table_at) and (path[2:3] != ("to",) or path[2:4] in (("to",), ("to", entry_at)))
    }
    return {**{path: origin for path, origin in loaded.origins.items() if path[:1] != ("tables",)}, **moved}
