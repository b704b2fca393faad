"""Rebuilds a target from the event log: a pipeline of one lane with the log as its source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from urllib.parse import quote, unquote

from replicator.application.lane_registry import is_target_taken, list_lanes
from replicator.application.sink_features import get_reader
from replicator.application.state_folder import REBUILDS_FOLDER, REGISTER_FOLDER, FileRegister, InstanceLock
from replicator.domain.errors import ConfigProblem, Fenced
from replicator.domain.events import EVENT_STORE
from replicator.domain.table import describe_target_problem
from replicator.local_files import replace_file
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.frames import Lane

REQUEST_FILE = "asked.json"
SPILL_FOLDER = "laid"
"""The folder in the state of a rebuild for spill files, until the one commit of a new target."""
CHECKPOINT_COPY_FOLDER = "begun"
"""The folder of a checkpoint copy while its content is copied into a target."""
REJECTED_FOLDER = "rejected"
"""The folder of a rebuild for its rejected records, until they are those of its lane."""
LOCAL = "local"


def find_rebuildable_lane(components: Components, table: str, lane: str | None) -> Lane:
    """The lane `lane` of a table (its source name), or the only one. ConfigProblem for none, and for several."""
    every = {one.id: one for one in components.resolve_lanes(table)}
    candidates = {name: one for name, one in every.items() if can_rebuild(components, one)}
    if lane in every and lane not in candidates:
        raise ConfigProblem(
            f"{lane} is in the event store, which cannot be rebuilt: stored events keep their versions",
            next_step=f"`replicator lanes resync {lane}` reads missing events again. Events that are already stored stay.",
        )
    names = ", ".join(candidates) or "none"
    if lane is not None and lane not in candidates:
        raise ConfigProblem(f"table {table} has no lane {lane!r}", next_step=f"Its lanes are: {names}.")
    if not candidates:
        raise ConfigProblem(
            f"no entry of `tables` writes {table!r} to a target that can be rebuilt",
            next_step="Use the table's name at the source: SCHEMA.TABLE.",
        )
    if lane is None and len(candidates) > 1:
        raise ConfigProblem(f"table {table} has several lanes", next_step=f"Name one with `--lane`: {names}.")
    return candidates[lane] if lane is not None else next(iter(candidates.values()))


def can_rebuild(components: Components, lane: Lane) -> bool:
    """True if the target of the lane can be rebuilt from records. The event store cannot."""
    return components.sinks[lane.sink].kind != EVENT_STORE


def prepare_rebuild(
    components: Components, request: RebuildRequest, topics: Collection[str] = (), *, for_checkpoint: bool = False
) -> Components:
    """The pipeline that builds the target. It has its own state folder, so another call resumes.

    `topics`: see `Components.use_log`. `for_checkpoint`: plain, as described there, and an earlier request does not count.

    ConfigProblem if the event log cannot be read, or the name belongs to another lane or owner. Also if the target
    was started with other options.
    """
    log = components.find_log(request.lane.table).sink
    if components.engine != LOCAL and components.sinks[log].is_log_in_database:
        raise ConfigProblem(
            f"the event log {log} is in a database, and the engine {components.engine!r} cannot read it there "
            f"({components.sinks[log].config_line})",
            next_step="Add a second event log in a lake (`path`), or use `engine: local`.",
        )
    # The name must be valid, and no target of a lane: configured, or created by a pattern.
    group = "must not contain a group such as {schema}" if "{" in request.into else None
    why = describe_target_problem(request.into) or group
    if why:
        raise ConfigProblem(f"the new target's name {request.into!r} {why}", next_step="Choose another name.")
    targets = dict(components.list_configured_targets(request.lane.table))
    targets |= {one.id: one.config_line for one in list_lanes(components)}
    if request.id in targets:
        raise ConfigProblem(
            f"{request.id} is a target of the config ({targets[request.id]})",
            next_step="Replay into another name, compare, and then choose.",
        )
    _claim_target(components, request, is_new=for_checkpoint)
    return components.use_log(request, topics, is_plain=for_checkpoint)


def get_rebuild_folder(components: Components, lane: str) -> Path:
    """The state folder of a rebuild on this machine, by the id of its lane."""
    return components.folder / REBUILDS_FOLDER / quote(lane, safe="")


@contextmanager
def lock_rebuild(components: Components, lane: str) -> Iterator[None]:
    """No other command builds or removes the target of the rebuild meanwhile. Fenced if one does."""
    folder = get_rebuild_folder(components, lane)
    lock = InstanceLock(folder.parent, components.pipeline, f"{folder.name}.lock")  # Its holder may remove the folder.
    try:
        lock.acquire()
    except Fenced as fenced:
        step = "Repeat the command when that one has ended."
        raise Fenced(f"another command builds or removes {lane}: {fenced.sentence}", next_step=step) from fenced
    try:
        yield
    finally:
        folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)
        lock.release()


@contextmanager
def lock_instance(components: Components, danger: str, next_step: str) -> Iterator[None]:
    """No daemon or `replay` of this pipeline and state folder runs or starts meanwhile. Fenced if one runs; `danger`: what a
    daemon does. Other writers are fenced by the sinks."""
    if components.ask_daemon() is not None:
        raise Fenced(f"the daemon is running, and {danger}", next_step=next_step)
    with ExitStack() as locks:
        locks.enter_context(InstanceLock(components.folder, components.pipeline))
        for folder in list_rebuild_folders(components):
            locks.enter_context(lock_rebuild(components, unquote(folder.name)))
        yield


def list_rebuilds(components: Components, table: str, source: str) -> Iterator[Lane]:
    """The targets that `replay` has built for the lanes of a table."""
    rules = components.sources[source].rules_for(table)
    lanes = {lane.id: lane for lane in (rules.lanes if rules else ())}
    for folder in list_rebuild_folders(components):
        request = json.loads((folder / REQUEST_FILE).read_text(encoding="utf-8"))
        if request["lane"] in lanes:
            lane = lanes[request["lane"]]
            rebuilt = replace(make_rebuild_lane(lane, request["into"]), policy=request["policy"] or lane.policy)
            if not _is_of_other_table(components, folder, rebuilt):
                yield rebuilt


def _is_of_other_table(components: Components, folder: Path, rebuilt: Lane) -> bool:
    """True if the rebuild in the folder has records of another table. Its request only names a lane, and lanes of two
    tables may have one id."""
    return is_target_taken(rebuilt, FileRegister(folder / components.pipeline / REGISTER_FOLDER).load(rebuilt.source))


def list_rebuild_folders(components: Components) -> list[Path]:
    """The state folders of rebuilds on this machine."""
    return sorted(file.parent for file in (components.folder / REBUILDS_FOLDER).glob(f"*/{REQUEST_FILE}"))


def _claim_target(components: Components, request: RebuildRequest, *, is_new: bool) -> None:
    """Claim the new target for this request. Deletes the files of a target that is gone. ConfigProblem if another request
    built it."""
    folder = get_rebuild_folder(components, request.id)
    request_json = {**{one.name: getattr(request, one.name) for one in fields(request)}, "lane": request.lane.id}
    request_json["apart"] = request_json.pop("target_digest")
    request_json = {name: value for name, value in request_json.items() if value or name not in {"apart", "below"}}
    with closing(components.open_sink(request.lane.sink)) as sink:
        is_there = request.into in get_reader(sink).tables()
    file = folder / REQUEST_FILE
    rebuilt = make_rebuild_lane(request.lane, request.into)
    if not is_there:
        shutil.rmtree(folder, ignore_errors=True)
    if not is_there or is_new:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(request_json).encode())  # A kill must not leave a part: `forget` reads it.
    elif not file.exists():
        raise ConfigProblem(
            f"{request.id} already exists, and no replay on this machine created it",
            next_step=f"If no other replay builds it, remove it: `replicator drop {request.id}`."
            if request.target_digest
            else "Choose another name.",
        )
    elif json.loads(file.read_text(encoding="utf-8")) != request_json or _is_of_other_table(components, folder, rebuilt):
        raise ConfigProblem(
            f"{request.id} was started with other options",
            next_step="Use the same options, or name another target. To start from scratch: `replicator drop "
            f"{request.id}`.",
        )


def make_rebuild_lane(lane: Lane, into: str) -> Lane:
    """The lane that builds the target `into` of the same table in the same sink. The config does not name it."""
    return replace(lane, id=f"{lane.sink}.{into}", into=into, config_line="")
