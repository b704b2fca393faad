"""Starts a rebuild from a checkpoint: selects one and copies it into the target."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from replicator.application.lane_schema import find_plan
from replicator.application.operations import checkpoint, cutover
from replicator.application.sink_features import get_reader, read_schema_versions, require_feature
from replicator.application.state_folder import FileRegister
from replicator.domain.errors import RejectCode
from replicator.domain.event_log import Checkpoint
from replicator.domain.position import Position
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.frames import Lane
from replicator.ports.runtime import ShowLine
from replicator.ports.sink import CheckpointUnsupported, KeyErasure, Sink
from replicator.ports.stores import (
    ALL_DEAD_LETTERS,
    DeadLetter,
    DeadLetterFeatures,
    DeadLetterFilter,
    DeadLetters,
    OlderVersions,
)

from .as_of import refuse_incomplete
from .checkpoint import AS_OF_FOLDER, CHECKPOINTS_FOLDER, STORES_NONE, CheckpointStore
from .drop import drop_lane
from .rebuild import BEGIN_FILE, get_rebuild_folder, prepare_rebuild

PARTIAL_STEP = "Rebuild from a part of the records with `--since TIME --into NAME`"


def show_nothing(_: str) -> None:
    """The default report: does nothing."""


def prepare_restored_rebuild(parts: Components, request: RebuildRequest, report: ShowLine = show_nothing) -> Components:
    """Like `rebuild.prepare_rebuild`, but a new target starts from the newest usable checkpoint.

    `report` gets which one, or why none is used. DataLoss, with the missing offsets, if the log lacks records that
    the lane has applied, unless the request has a `since`.
    """
    if request.since is None:
        refuse_incomplete_rebuild(parts, request)
    begun = checkpoint.use_checkpoint(
        partial(find_checkpoint, parts, request, report), partial(_restore, parts, request, report)
    )
    made = begun or prepare_rebuild(parts, request)
    copy = get_rebuild_folder(parts, request.id) / BEGIN_FILE
    shutil.rmtree(copy, ignore_errors=True)  # A killed rebuild may have left one, too.
    return made


def _restore(parts: Components, request: RebuildRequest, report: ShowLine, taken: Checkpoint) -> Components:
    """Like `rebuild.prepare_rebuild`, with the content of the checkpoint in the target.

    If the target cannot store it, the target starts empty, and `report` gets the reason. CheckpointRemoved, without
    a target, if the checkpoint was removed meanwhile.
    """
    made = prepare_rebuild(parts, request, checkpoint.list_topics(parts, request.lane, taken))
    folder = get_rebuild_folder(parts, request.id) / BEGIN_FILE
    cast(CheckpointStore, checkpoint.find_store(parts, request.lane)).copy_checkpoint(taken, folder)
    try:
        _restore_state(parts, made, request, folder)
    except CheckpointUnsupported as unfit:
        return _prepare_from_log(parts, request, report, f"none can be used, because number {taken.number} {unfit}")
    return made


def _prepare_from_log(parts: Components, request: RebuildRequest, report: ShowLine, why: str) -> Components:
    """`rebuild.prepare_rebuild` after a checkpoint could not be used. DataLoss if the log lacks records."""
    drop_lane(parts, cutover.make_rebuild_lane(request.lane, request.into))
    checkpoint.refuse_truncated(parts, request.lane, why)
    refuse_incomplete(parts, request.lane, Position(), PARTIAL_STEP)
    report(f"{request.id}: reading the whole event log instead of a snapshot: {why}")
    return prepare_rebuild(parts, request)


def find_checkpoint(parts: Components, request: RebuildRequest, report: ShowLine = show_nothing) -> Checkpoint | None:
    """The checkpoint to start from. None if the rebuild reads the whole log, or has already started.

    DataLoss if the log lacks its first records and no checkpoint covers them. With a `since`, `report` gets this
    instead.
    """
    there = checkpoint.list_checkpoints(parts, request.lane)
    rebuilt = cutover.make_rebuild_lane(request.lane, request.into)
    with closing(parts.open_sink(rebuilt.sink)) as sink:
        if request.into in get_reader(sink).tables() and sink.state(rebuilt) is not None:
            return None
        why = _describe_unsupported(request, rebuilt, sink) or checkpoint.NO_CHECKPOINT_REASON
    for said in checkpoint.describe_damaged(parts, request.lane):
        report(f"{request.id}: {said}")
    until = None if request.until is None else datetime.fromisoformat(request.until)
    found = checkpoint.find_newest(parts, request.lane, until) if why == checkpoint.NO_CHECKPOINT_REASON else None
    if found is not None:
        report(f"{request.id}: starting from snapshot {found.number} of {found.taken_at.isoformat()}")
        return found
    if request.since is None:
        checkpoint.refuse_truncated(parts, request.lane, why)
    else:
        checkpoint.report_truncated(parts, request.lane, report)
    if there:
        report(f"{request.id}: reading the whole event log instead of a snapshot: {why}")
    return None


def refuse_incomplete_rebuild(parts: Components, request: RebuildRequest) -> None:
    """DataLoss, with the missing offsets, unless the event log or the checkpoint has everything from the start of
    the lane."""
    refuse_incomplete(parts, request.lane, _find_rebuild_start(parts, request), PARTIAL_STEP)


def _find_rebuild_start(parts: Components, request: RebuildRequest) -> Position:
    """The position from which the rebuilt target has all records."""
    found = find_checkpoint(parts, request)
    if found is not None:
        return found.begun
    register = FileRegister(get_rebuild_folder(parts, request.id) / parts.pipeline / "sources")
    return register.load(request.lane.source).beginnings.get(request.id, Position())


def _describe_unsupported(request: RebuildRequest, rebuilt: Lane, sink: Sink[Any]) -> str:
    """Why no checkpoint can be used; empty if one may be."""
    if request.since is not None:
        return "none can be used, because only records of a period are requested"
    if request.policy not in (None, request.lane.policy):
        return f"none can be used, because they have policy {request.lane.policy}"
    unsupported = sink.features.restore_state is None
    return f"none can be used, because sink {rebuilt.sink} does not support it yet" if unsupported else ""


def _restore_state(parts: Components, made: Components, request: RebuildRequest, folder: Path) -> None:
    """Rows and state are written last, so after a kill this is either repeated or complete."""
    rebuilt = cutover.make_rebuild_lane(request.lane, request.into)
    origin = cutover.make_rebuild_lane(rebuilt, checkpoint.AS_OF_FOLDER)
    with closing(parts.use_lake(rebuilt.sink, folder).open_sink(rebuilt.sink)) as there:
        plan = find_plan(rebuilt, read_schema_versions(there, origin))
        if plan is None:
            raise CheckpointUnsupported("tells no schema")
        stored = require_feature(there.features.open_stored_lane, checkpoint.STORES_NONE)(origin, plan)
    _copy_register(parts, made, (folder, origin), rebuilt)
    _copy_dead_letters(parts, made, (folder, origin), rebuilt)
    with closing(parts.open_sink(rebuilt.sink, "rewrite")) as sink:
        restore = require_feature(sink.features.restore_state, f"sink {rebuilt.sink!r} cannot start from a snapshot")
        restore(rebuilt, plan, stored)


def _copy_register(parts: Components, made: Components, begun: tuple[Path, Lane], rebuilt: Lane) -> None:
    """Copy the register entry of the run that made the checkpoint."""
    folder, origin = begun
    pipeline = parts.pipeline
    kept = folder / "state" / pipeline / "replays" / quote(origin.id, safe="") / pipeline / "sources"
    seen = FileRegister(kept).load(rebuilt.source)
    beginnings = {rebuilt.id: seen.beginnings.get(origin.id, Position())}
    made.register.save(rebuilt.source, replace(seen, beginnings=beginnings))


def _copy_dead_letters(parts: Components, made: Components, begun: tuple[Path, Lane], rebuilt: Lane) -> None:
    """Copy the dead letters of the checkpoint to the lane."""
    folder, origin = begun
    with closing(parts.use_lake(rebuilt.sink, folder).open_dead_letters()) as kept:
        letters = kept.read()
    _refuse_missing_rows(made, rebuilt, letters)
    if letters:
        with closing(made.open_dead_letters()) as store:
            store.write([replace(one, lane=rebuilt.id if one.lane == origin.id else one.lane) for one in letters])


def _refuse_missing_rows(made: Components, rebuilt: Lane, letters: Sequence[DeadLetter]) -> None:
    """CheckpointUnsupported if the checkpoint lacks rows whose values a lake cannot store, but the target may."""
    unkept = [one for one in letters if one.stage == "apply" and one.code == RejectCode.OUT_OF_RANGE]
    if unkept and not made.sinks[rebuilt.sink].is_lake:
        raise CheckpointUnsupported("lacks rows with values that a lake cannot store, but this target may")


# Erases rows from checkpoints, as from targets.


def list_stores(parts: Components, table: str, source: str) -> list[CheckpointStore]:
    """The checkpoint folders of the pipeline's lanes at the event logs of the table, including lanes no longer
    configured."""
    found: list[CheckpointStore] = []
    rules = parts.sources[source].rules_for(table)
    for log in sorted(rules.event_logs if rules else ()):
        folder = parts.sinks[log].log_folder
        home = Path(folder or "") / CHECKPOINTS_FOLDER / quote(parts.pipeline, safe="")
        found += [CheckpointStore(path) for path in sorted(home.glob("*"))] if folder is not None else []
    return found


def make_checkpoint_erasure(lake: Sink[Any], of: Lane) -> KeyErasure:
    """Erases keys from the copy of the lane `of` in a checkpoint. Its older versions are deleted at once, because nothing
    reads them."""
    erasure = require_feature(lake.features.erasure, STORES_NONE)
    then = cutover.make_rebuild_lane(of, AS_OF_FOLDER)  # The lane has another name here.
    return KeyErasure(
        erase=lambda _, key: replace(erasure.erase(then, key), versions=erasure.end_versions(then)),
        end_versions=lambda _: erasure.end_versions(then),
    )


class CombinedDeadLetters:
    """Several dead-letter stores as one, with the methods that an erasure needs."""

    def __init__(self, stores: Sequence[DeadLetters]) -> None:
        self._stores = stores

    @property
    def features(self) -> DeadLetterFeatures:
        """The older versions of all stores."""
        stores = [one.features.versions for one in self._stores]
        versions = [one for one in stores if one is not None]
        return DeadLetterFeatures(
            versions=OlderVersions(
                describe=lambda: "; ".join(filter(None, (one.describe() for one in versions))),
                end=lambda: "; ".join(filter(None, (one.end() for one in versions))),
            )
        )

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """The dead letters of all stores."""
        return [letter for store in self._stores for letter in store.read(which, limit=limit)]

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Remove the dead letters from every store that has them."""
        for store in self._stores:
            store.remove(letters)


def open_checkpoints(parts: Components, table: str, source: str, stack: ExitStack) -> Iterator[tuple[Lane, KeyErasure, Any]]:
    """Every checkpoint of the table's lanes: its lane with the checkpoint number in its name, its target, and its
    dead letters.

    They stay locked until `stack` ends. Half-made checkpoints of any table are removed, because they do not name
    their table. Fenced while another process makes one.
    """
    for store in list_stores(parts, table, source):
        stack.enter_context(store.lock())
        store.remove_leftovers()
        for one in (known for known in store.list_all() if known.table == table):
            lane, path = _make_lane(parts, one, source), store.get_folder(one)
            stack.enter_context(store.mark_changing(one))
            lake = parts.use_lake(lane.sink, path)
            sink = make_checkpoint_erasure(stack.enter_context(closing(lake.open_sink(lane.sink))), lane)
            letters = stack.enter_context(closing(lake.open_dead_letters()))
            yield replace(lane, id=f"{lane.id}, snapshot {one.number}"), sink, letters


def _make_lane(parts: Components, one: Checkpoint, source: str) -> Lane:
    rules = parts.sources[source].rules_for(one.table)
    for lane in rules.lanes if rules else ():
        if lane.id == one.lane:
            return lane
    sink, _, into = one.lane.partition(".")
    return Lane(one.lane, parts.pipeline, source, one.table, sink, into, "")
