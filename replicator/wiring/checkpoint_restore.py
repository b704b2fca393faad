"""Starts a rebuild from a checkpoint: selects one and copies it into the target."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from replicator.application.lane_schema import find_plan
from replicator.application.operations import cutover
from replicator.application.operations.drop import drop_lane
from replicator.application.schema_history import read_schema_versions
from replicator.application.stream.file_register import FileRegister
from replicator.domain.checkpoints import Checkpoint
from replicator.domain.errors import RejectCode
from replicator.domain.position import Position
from replicator.ports.checkpoints import CheckpointUnsupported, OpensStoredLanes
from replicator.ports.dead_letters import DeadLetter
from replicator.ports.frames import Lane
from replicator.settings import Loaded
from replicator.settings.sinks import DeadLetterSettings

from . import adapters, build, checkpoints, log_completeness, rebuild
from .components import ConfiguredComponents
from .plugins import load_adapter
from .rebuild import BEGIN_FILE, RebuildRequest

Report = Callable[[str], None]
PARTIAL_STEP = "Make one of a part of the records with `--since TIME --into NAME`"


def ignore_report(_: str) -> None:
    """The default report: does nothing."""


def prepare_rebuild(loaded: Loaded, request: RebuildRequest, report: Report = ignore_report) -> Loaded:
    """Like `rebuild.prepare_rebuild`, but a new target starts from the newest usable checkpoint.

    `report` gets which one, or why none is used. DataLoss, with the missing offsets, if the log lacks records that
    the lane has applied, unless the request has a `since`.
    """
    if request.since is None:
        refuse_incomplete(loaded, request)
    begun = checkpoints.use_checkpoint(
        partial(find_checkpoint, loaded, request, report), partial(_restore, loaded, request, report)
    )
    config = begun or rebuild.prepare_rebuild(loaded, request)
    shutil.rmtree(Path(config.settings.state) / BEGIN_FILE, ignore_errors=True)  # A killed rebuild may have left one, too.
    return config


def _restore(loaded: Loaded, request: RebuildRequest, report: Report, checkpoint: Checkpoint) -> Loaded:
    """Like `rebuild.prepare_rebuild`, with the content of the checkpoint in the target.

    If the target cannot store it, the target starts empty, and `report` gets the reason. CheckpointRemoved, without
    a target, if the checkpoint was removed meanwhile.
    """
    config = rebuild.prepare_rebuild(loaded, request, checkpoints.list_topics(loaded, request.lane, checkpoint))
    folder = Path(config.settings.state) / BEGIN_FILE
    cast(Any, checkpoints.find_store(loaded, request.lane)).copy_checkpoint(checkpoint, folder)
    try:
        _restore_state(loaded, config, request, folder)
    except CheckpointUnsupported as unfit:
        return _prepare_from_log(loaded, request, report, f"none can be used, as number {checkpoint.number} {unfit}")
    return config


def _prepare_from_log(loaded: Loaded, request: RebuildRequest, report: Report, why: str) -> Loaded:
    """`rebuild.prepare_rebuild` after a checkpoint could not be used. DataLoss if the log lacks records."""
    drop_lane(
        ConfiguredComponents(loaded), cutover.make_rebuild_lane(adapters.build_lane(loaded, request.lane), request.into)
    )
    checkpoints.refuse_truncated(loaded, request.lane, why)
    log_completeness.refuse_incomplete(loaded, request.lane, Position(), PARTIAL_STEP)
    report(f"{request.id}: the whole event log is read; of the snapshots {why}")
    return rebuild.prepare_rebuild(loaded, request)


def find_checkpoint(loaded: Loaded, request: RebuildRequest, report: Report = ignore_report) -> Checkpoint | None:
    """The checkpoint to start from. None if the rebuild reads the whole log, or has already started.

    DataLoss if the log lacks its first records and no checkpoint covers them. With a `since`, `report` gets this
    instead.
    """
    there = checkpoints.list_checkpoints(loaded, request.lane)
    rebuilt = cutover.make_rebuild_lane(adapters.build_lane(loaded, request.lane), request.into)
    with closing(cast(Any, adapters.build_sink(loaded, rebuilt.sink))) as sink:
        if request.into in sink.tables() and sink.state(rebuilt) is not None:
            return None
        why = _describe_unsupported(request, rebuilt, sink) or checkpoints.NO_CHECKPOINT_REASON
    for said in checkpoints.describe_damaged(loaded, request.lane):
        report(f"{request.id}: {said}")
    until = None if request.until is None else datetime.fromisoformat(request.until)
    found = checkpoints.find_newest(loaded, request.lane, until) if why == checkpoints.NO_CHECKPOINT_REASON else None
    if found is not None:
        report(f"{request.id}: going on from snapshot {found.number} of {found.taken_at.isoformat()}")
        return found
    if request.since is None:
        checkpoints.refuse_truncated(loaded, request.lane, why)
    else:
        checkpoints.report_truncated(loaded, request.lane, report)
    if there:
        report(f"{request.id}: the whole event log is read; of the snapshots {why}")
    return None


def refuse_incomplete(loaded: Loaded, request: RebuildRequest) -> None:
    """DataLoss, with the missing offsets, unless the event log or the checkpoint has everything from the start of
    the lane."""
    log_completeness.refuse_incomplete(loaded, request.lane, _find_rebuild_start(loaded, request), PARTIAL_STEP)


def _find_rebuild_start(loaded: Loaded, request: RebuildRequest) -> Position:
    """The position from which the rebuilt target has all records."""
    found = find_checkpoint(loaded, request)
    if found is not None:
        return found.begun
    register = FileRegister(rebuild.get_folder(loaded, request) / loaded.settings.pipeline / "sources")
    return register.load(request.lane.source).beginnings.get(request.id, Position())


def _describe_unsupported(request: RebuildRequest, rebuilt: Lane, sink: Any) -> str:
    """Why no checkpoint can be used; empty if one may be."""
    if request.since is not None:
        return "none can be used, as only records of a period are asked for"
    if request.policy not in (None, request.lane.policy):
        return f"none can be used, as they are of policy {request.lane.policy}"
    return (
        ""
        if hasattr(sink, "restore_state")
        else f"none can be used, as targets in sink {rebuilt.sink} do not begin with one yet"
    )


def _restore_state(loaded: Loaded, config: Loaded, request: RebuildRequest, folder: Path) -> None:
    """Rows and state are written last, so after a kill this is either repeated or complete."""
    rebuilt = cutover.make_rebuild_lane(adapters.build_lane(loaded, request.lane), request.into)
    origin = cutover.make_rebuild_lane(rebuilt, checkpoints.AS_OF_FOLDER)
    lake = str(folder / "lake")
    with closing(load_adapter("replicator.sinks", "delta")({"path": lake})) as there:
        plan = find_plan(rebuilt, read_schema_versions(there, origin))
        if plan is None:
            raise CheckpointUnsupported("tells no schema")
        stored = cast(OpensStoredLanes, there).open_stored_lane(origin, plan)
    _copy_register(loaded, config, (folder, origin), rebuilt)
    _copy_dead_letters(config, (folder, origin), rebuilt)
    with closing(cast(Any, ConfiguredComponents(loaded).open_sink(rebuilt.sink, "rewrite"))) as sink:
        sink.restore_state(rebuilt, plan, stored)


def _copy_register(loaded: Loaded, config: Loaded, begun: tuple[Path, Lane], rebuilt: Lane) -> None:
    """Copy the register entry of the run that made the checkpoint."""
    folder, origin = begun
    pipeline = loaded.settings.pipeline
    kept = folder / "state" / pipeline / "replays" / quote(origin.id, safe="") / pipeline / "sources"
    seen = FileRegister(kept).load(rebuilt.source)
    beginnings = {rebuilt.id: seen.beginnings.get(origin.id, Position())}
    FileRegister(build.get_register_folder(config)).save(rebuilt.source, replace(seen, beginnings=beginnings))


def _copy_dead_letters(config: Loaded, begun: tuple[Path, Lane], rebuilt: Lane) -> None:
    """Copy the dead letters of the checkpoint to the lane."""
    folder, origin = begun
    place = DeadLetterSettings.model_construct(path=str(folder / "dead_letters"))
    before = replace(config, settings=config.settings.model_copy(update={"dead_letters": place}))
    with closing(cast(Any, adapters.build_dead_letters(before))) as kept:
        letters = kept.read()
    _refuse_missing_rows(config, rebuilt, letters)
    if letters:
        with closing(cast(Any, adapters.build_dead_letters(config))) as store:
            store.write([replace(one, lane=rebuilt.id if one.lane == origin.id else one.lane) for one in letters])


def _refuse_missing_rows(config: Loaded, rebuilt: Lane, letters: Sequence[DeadLetter]) -> None:
    """CheckpointUnsupported if the checkpoint lacks rows whose values a lake cannot store, but the target may."""
    unkept = [one for one in letters if one.stage == "apply" and one.code == RejectCode.OUT_OF_RANGE]
    if unkept and config.settings.sinks[rebuilt.sink].kind != "delta":
        raise CheckpointUnsupported("lacks rows with values that no lake keeps, and this target may")
