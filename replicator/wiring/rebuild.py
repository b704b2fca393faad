"""A target made anew from the event log: the pipeline of one lane, with the log as its source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from pydantic import PrivateAttr

from replicator.domain.errors import ConfigProblem
from replicator.settings import LaneSettings, Loaded
from replicator.settings.fields import Dsn, LakePath, Topic, describe_target_problem
from replicator.settings.sinks import DeadLetterSettings
from replicator.settings.sources import SourceSettings
from replicator.settings.storage import StorageSettings
from replicator.settings.tables import Policy, TableSettings

from . import adapters
from .change_history import DATABASE_TRANSPORT, find_log, get_log_transport, make_log_options
from .stored_lanes import list_lanes

REQUEST_FILE = "asked.json"
SPILL_FOLDER = "laid"
"""The folder below the state of a replay in which rows wait for the one commit of a new target."""
BEGIN_FILE = "begun"
"""The folder in which a snapshot is while a target gets what it holds."""


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """What is to be made: of the lane `lane` a target called `into` beside its own, under another `policy` where one is
    said, of the records between `since` and `until` (times at the source, ISO text with a zone), as far as they tell one;
    or of those `below` a position (as JSON)."""

    lane: LaneSettings
    into: str
    policy: Policy | None = None
    since: str | None = None
    until: str | None = None
    below: dict[str, dict[str, int]] | None = None
    apart: str = ""
    """Its rejected records are kept apart, for a target of no lane; and the digest of the config that it is made under."""

    @property
    def id(self) -> str:
        """The lane that makes it."""
        return f"{self.lane.sink}.{self.into}"


class LogSettings(SourceSettings):
    """An event log as the source whose records it keeps: read as topics whatever their format, and decoded as they are
    there."""

    transport: str
    path: LakePath | None = None
    storage: StorageSettings | None = None
    dsn: Dsn | None = None
    topics: list[Topic] | None = None
    since: str | None = None
    until: str | None = None
    below: dict[str, dict[str, int]] | None = None
    """Where the log is taken to end."""
    part: bool | None = None
    """Whether a part of the records is asked for, whatever the log has removed."""
    _recorded: SourceSettings = PrivateAttr()

    @classmethod
    def from_source(cls, recorded: SourceSettings, **more: Any) -> LogSettings:
        """The log of what comes from `recorded`; `more` are its own keys."""
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
    """The lane of a table (its name in the source) that is called `lane`, or its only one. ConfigProblem for none, and for
    several."""
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
    """The configuration that makes it, with a state folder of its own: given again it goes on where it stopped. `topics`:
    where the table's records are, as far as that is known. `from_scratch`: whatever was asked for before. `entry`: keys of
    the lane's entry that are to be others.

    ConfigProblem where the event log cannot be read, where the config or somebody else has a target of that name, and
    where that target was begun with other words.
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
    # As the config has them: secrets stay veiled.
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
    """What is kept of it on this machine."""
    return get_lane_folder(loaded, request.id)


def get_lane_folder(loaded: Loaded, lane: str) -> Path:
    """Where that is of a lane that a replay has made."""
    return adapters.get_state_folder(loaded) / "replays" / quote(lane, safe="")


def _refuse_engine(loaded: Loaded, log: str) -> None:
    engine = loaded.settings.engine
    if engine != adapters.LOCAL and get_log_transport(loaded, log) == DATABASE_TRANSPORT:
        raise ConfigProblem(
            f"the event log {log} is in a database, from where the engine {engine!r} does not read it "
            f"({loaded.describe_origin('sinks', log)})",
            next_step="Keep an event log in a lake (`path`) beside it, or use `engine: local`.",
        )


def _refuse_name(loaded: Loaded, request: RebuildRequest) -> None:
    """It must be a name, and no lane's: of those that the config names, and of those that its patterns brought about."""
    why = describe_target_problem(request.into) or ("cannot be made of groups" if "{" in request.into else None)
    if why:
        raise ConfigProblem(f"the new target's name {request.into!r} {why}", next_step="Choose another name.")
    named = [
        lane for table in loaded.settings.tables for lane in loaded.settings.resolve_entry_lanes(table, request.lane.table)
    ]
    taken = {f"{one.sink}.{one.into}": adapters.get_config_line(loaded, one) for one in named}
    taken |= {one.id: one.config_line for one in list_lanes(loaded)}
    if request.id in taken:
        raise ConfigProblem(
            f"{request.id} is a target of the config ({taken[request.id]})",
            next_step="Replay into another name, compare, and then choose.",
        )


def _write_request(loaded: Loaded, request: RebuildRequest, folder: Path, *, from_scratch: bool) -> None:
    """What was asked for, beside how far it is. What was left of a target that is gone is removed."""
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
    """The entry of the lane, for its table alone, with some keys that are others."""
    _, table_at, _, entry_at = request.lane.at
    table = loaded.settings.tables[cast(int, table_at)]
    more = {"policy": request.policy, "stored_as_scd_type": None} if request.policy else {}
    entry = table.to[cast(int, entry_at)].model_copy(update={"into": request.into, **more, **others})
    return table.model_copy(update={"match": request.lane.table, "to": [entry]})


def _make_origins(loaded: Loaded, request: RebuildRequest) -> Any:
    """Where the one entry stands in the config that it is taken from."""
    _, table_at, _, entry_at = request.lane.at
    moved = {
        ("tables", 0, "to", 0, *path[4:]) if path[2:4] == ("to", entry_at) else ("tables", 0, *path[2:]): origin
        for path, origin in loaded.origins.items()
        if path[:2] == ("tables", table_at) and (path[2:3] != ("to",) or path[2:4] in (("to",), ("to", entry_at)))
    }
    return {**{path: origin for path, origin in loaded.origins.items() if path[:1] != ("tables",)}, **moved}
