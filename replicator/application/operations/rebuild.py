"""Rebuilds a target from the event log: a pipeline of one lane with the log as its source. Then switches the lane to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from replicator.application.lane_registry import is_target_taken, list_lanes
from replicator.application.sink_features import get_reader
from replicator.application.state_folder import FileRegister
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.events import EVENT_STORE
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.domain.table import describe_target_problem
from replicator.ports.components import Components, RebuildRequest, TransactionRules
from replicator.ports.frames import Lane
from replicator.ports.sink import Sink
from replicator.ports.source import Source

REQUEST_FILE = "asked.json"
SPILL_FOLDER = "laid"
"""The folder in the state of a rebuild for spill files, until the one commit of a new target."""
BEGIN_FILE = "begun"
"""The folder of a checkpoint copy while its content is copied into a target."""
LOCAL = "local"


def find_lane(parts: Components, table: str, lane: str | None) -> Lane:
    """The lane `lane` of a table (its source name), or the only one. ConfigProblem for none, and for several."""
    every = {one.id: one for one in parts.resolve_lanes(table)}
    candidates = {name: one for name, one in every.items() if can_rebuild(parts, one)}
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


def can_rebuild(parts: Components, lane: Lane) -> bool:
    """True if the target of the lane can be rebuilt from records. The event store cannot."""
    return parts.sinks[lane.sink].kind != EVENT_STORE


def prepare_rebuild(
    parts: Components,
    request: RebuildRequest,
    topics: Collection[str] = (),
    *,
    from_scratch: bool = False,
    is_plain: bool = False,
) -> Components:
    """The pipeline that builds the target. It has its own state folder, so another call resumes.

    `topics`, `is_plain`: see `Components.use_log`. `from_scratch`: ignore an earlier request.

    ConfigProblem if the event log cannot be read, or the name belongs to another lane or owner. Also if the target
    was started with other options.
    """
    _refuse_engine(parts, parts.find_log(request.lane.table).sink)
    _refuse_name(parts, request)
    _write_request(parts, request, from_scratch=from_scratch)
    return parts.use_log(request, topics, is_plain=is_plain)


def get_rebuild_folder(parts: Components, lane: str) -> Path:
    """The state folder of a rebuild on this machine, by the id of its lane."""
    return parts.folder / "replays" / quote(lane, safe="")


def list_rebuilds(parts: Components, table: str, source: str) -> Iterator[Lane]:
    """The targets that `replay` has built for the lanes of a table."""
    rules = parts.sources[source].rules_for(table)
    lanes = {lane.id: lane for lane in (rules.lanes if rules else ())}
    for folder in list_rebuild_folders(parts):
        request = json.loads((folder / REQUEST_FILE).read_text(encoding="utf-8"))
        if request["lane"] in lanes:
            lane = lanes[request["lane"]]
            rebuilt = replace(
                lane, id=f"{lane.sink}.{request['into']}", into=request["into"], policy=request["policy"] or lane.policy
            )
            if not _is_of_other_table(parts, folder, rebuilt):
                yield rebuilt


def _is_of_other_table(parts: Components, folder: Path, rebuilt: Lane) -> bool:
    """True if the rebuild in the folder has records of another table. Its request only names a lane, and lanes of two
    tables may have one id."""
    return is_target_taken(rebuilt, FileRegister(folder / parts.pipeline / "sources").load(rebuilt.source))


def list_rebuild_folders(parts: Components) -> list[Path]:
    """The state folders of rebuilds on this machine."""
    return sorted(file.parent for file in (parts.folder / "replays").glob(f"*/{REQUEST_FILE}"))


def _refuse_engine(parts: Components, log: str) -> None:
    if parts.engine != LOCAL and parts.sinks[log].is_log_in_database:
        raise ConfigProblem(
            f"the event log {log} is in a database, and the engine {parts.engine!r} cannot read it there "
            f"({parts.sinks[log].config_line})",
            next_step="Add a second event log in a lake (`path`), or use `engine: local`.",
        )


def _refuse_name(parts: Components, request: RebuildRequest) -> None:
    """The name must be valid, and no target of a lane: configured, or created by a pattern."""
    why = describe_target_problem(request.into) or ("cannot be made of groups" if "{" in request.into else None)
    if why:
        raise ConfigProblem(f"the new target's name {request.into!r} {why}", next_step="Choose another name.")
    targets = dict(parts.list_configured_targets(request.lane.table))
    targets |= {one.id: one.config_line for one in list_lanes(parts)}
    if request.id in targets:
        raise ConfigProblem(
            f"{request.id} is a target of the config ({targets[request.id]})",
            next_step="Replay into another name, compare, and then choose.",
        )


def _write_request(parts: Components, request: RebuildRequest, *, from_scratch: bool) -> None:
    """Store the request next to the state. Files of a target that no longer exists are removed."""
    folder = get_rebuild_folder(parts, request.id)
    request_json = {**{one.name: getattr(request, one.name) for one in fields(request)}, "lane": request.lane.id}
    request_json = {name: value for name, value in request_json.items() if value or name not in {"apart", "below"}}
    file, is_there = folder / REQUEST_FILE, _has_target(parts, request)
    rebuilt = replace(request.lane, id=request.id, into=request.into)
    if not is_there:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        file.write_text(json.dumps(request_json), encoding="utf-8")
    elif from_scratch:
        file.write_text(json.dumps(request_json), encoding="utf-8")
    elif not file.exists():
        raise ConfigProblem(
            f"{request.id} already exists, and no replay on this machine created it", next_step="Choose another name."
        )
    elif json.loads(file.read_text(encoding="utf-8")) != request_json or _is_of_other_table(parts, folder, rebuilt):
        raise ConfigProblem(
            f"{request.id} was started with other options",
            next_step="Use the same options, or name another target. To start from scratch: `replicator drop "
            f"{request.id}`.",
        )


def _has_target(parts: Components, request: RebuildRequest) -> bool:
    with closing(parts.open_sink(request.lane.sink)) as sink:
        return request.into in get_reader(sink).tables()


# Switches a lane to a target that was rebuilt from the event log: no gap, and nothing twice.


def make_rebuild_lane(lane: Lane, into: str) -> Lane:
    """The lane that builds the target `into` of the same table in the same sink. The config does not name it."""
    return replace(lane, id=f"{lane.sink}.{into}", into=into, config_line="")


@dataclass(frozen=True)
class Cutover:
    """A `ports.sink.CutoverDecision`: the lane continues where the rebuilt rows end.

    `begun`, the start position of the lane, shows partitions of which it has applied nothing. `transactions`: the
    rules of a source with transactions. Their topic has no rows of the table, so the rebuilt rows have no position
    in it. If lanes wait for each other at transactions, the rebuilt rows may not be ahead of the lane.
    """

    lane: Lane
    begun: Position
    transactions: TransactionRules | None = None

    def __call__(self, live: LaneState | None, rebuilt: LaneState) -> LaneState:
        """The combined state. DataLoss if the lane has applied records of a partition in which the rebuilt rows
        have no position."""
        live = live or LaneState()
        for partition, offset in without_transaction_topic(live.position, self.transactions).items():
            if partition not in rebuilt.position and offset > self.begun.get(partition, 0):
                raise DataLoss(
                    f"the event log has no records of {partition}, but lane {self.lane.id} has applied some",
                    next_step="Record the table's topics in the event log (`to: [{sink: LOG}]`), or keep the table as it "
                    "is.",
                )
        ahead = [p for p, offset in rebuilt.position.items() if offset > live.position.get(p, self.begun.get(p, 0))]
        if self.transactions and self.transactions.together and ahead:
            raise Fatal(
                f"the event log is ahead of lane {self.lane.id} in {ahead[0]}: the lane waits for the end of a transaction",
                next_step="Repeat the command when the lane has caught up. The rebuilt rows are kept.",
            )
        position = Position({**live.position, **rebuilt.position})
        return replace(rebuilt, position=position, identity=live.identity)


def without_transaction_topic(position: Position, transactions: TransactionRules | None) -> Position:
    """The position without the transaction topic, which a lane reads besides the topics of its table."""
    return position.only(p for p in position if transactions is None or p.topic != transactions.topic)


def find_gap(live: LaneState | None, rebuilt: LaneState | None) -> Position:
    """The end of the rebuilt rows, in the partitions in which the lane is further."""
    live_position, position = (state.position if state else Position() for state in (live, rebuilt))
    return Position({p: offset for p, offset in position.items() if offset < live_position.get(p, offset)})


def refuse_lost_records(source: Source[Any], lane: Lane, live: LaneState | None, rebuilt: LaneState | None) -> None:
    """Raise DataLoss if the lane is ahead of the rebuilt rows and its source has lost the records between them."""
    gap = find_gap(live, rebuilt)
    lost = source.losses(gap, dict(live.identity if live else ())) if gap else {}
    if lost:
        sentences = "; ".join(f"{p}: {why.rstrip('.')}" for p, why in sorted(lost.items()))
        raise DataLoss(
            f"the event log ends at {gap.to_option()}, and lane {lane.id} could not continue from there: {sentences}",
            next_step="Check that the lane of the event log is running (`replicator lanes list`), and repeat the command.",
        )


def swap_tables(sink: Sink[Any], lane: Lane, rebuilt: Lane, judge: Cutover) -> LaneState:
    """Swap the tables of the two lanes. ConfigProblem for a sink that cannot."""
    swap = sink.features.swap
    if swap is None:
        raise ConfigProblem(
            f"the sink of lane {lane.id} cannot swap a target with its rebuild",
            next_step="Name another table with `--into`. Or stop the daemon, and repeat the command.",
        )
    return swap(lane, rebuilt, judge)


@dataclass(frozen=True, slots=True)
class SwapRequest:
    """The request to the running daemon: the lane's table, the rebuilt target, and the digest of its rules."""

    table: str
    into: str
    digest: str


def swap_to_text(swap: SwapRequest) -> str:
    """The request as JSON text."""
    return json.dumps(asdict(swap))


def swap_from_text(words: str) -> SwapRequest:
    """The request from `swap_to_text`. ConfigProblem for any other text."""
    try:
        request = json.loads(words)
        return SwapRequest(str(request["table"]), str(request["into"]), str(request["digest"]))
    except (ValueError, KeyError, TypeError) as wrong:
        raise ConfigProblem(
            "a swap needs the table, its new target and the digest of the rules", next_step="Use `replicator replay TABLE`."
        ) from wrong
