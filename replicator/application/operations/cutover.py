"""Switches a lane to a target that was rebuilt from the event log: no gap, and nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position, TopicPartition
from replicator.ports.components import TransactionRules
from replicator.ports.frames import Lane
from replicator.ports.sink import Sink
from replicator.ports.source import Source


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
        for place, offset in without_transaction_topic(live.position, self.transactions).items():
            if place not in rebuilt.position and offset > self.begun.get(place, 0):
                raise DataLoss(
                    f"the event log has no records of {place}, but lane {self.lane.id} has applied some",
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
    ours, theirs = (state.position if state else Position() for state in (live, rebuilt))
    return Position({p: offset for p, offset in theirs.items() if offset < ours.get(p, offset)})


def refuse_lost_records(source: Source[Any], lane: Lane, live: LaneState | None, rebuilt: LaneState | None) -> None:
    """Raise DataLoss if the lane is ahead of the rebuilt rows and its source has lost the records between them."""
    place = find_gap(live, rebuilt)
    lost = source.losses(place, dict(live.identity if live else ())) if place else {}
    if lost:
        sentences = "; ".join(f"{p}: {why.rstrip('.')}" for p, why in sorted(lost.items()))
        raise DataLoss(
            f"the event log ends at {place.to_option()}, and lane {lane.id} could not continue from there: {sentences}",
            next_step="Check that the lane of the event log is running (`replicator lanes list`), and repeat the command.",
        )


def refuse_incomplete(
    lane: Lane, log: str, needed: Mapping[TopicPartition, int], kept: Iterable[Position], step: str
) -> None:
    """Raise DataLoss, with the missing offsets, unless the log has all records from `needed` on, the start of the
    lane.

    `kept`: first offsets of the log, from its start position and from its first records. Each partition needs one
    of them.
    """
    known = list(kept)
    for place, offset in sorted(needed.items()):
        firsts = [position[place] for position in known if place in position]
        if not any(first <= offset for first in firsts):
            missing = f"from {offset} to {min(firsts) - 1}" if firsts else f"from {offset} on"
            raise DataLoss(
                f"the event log {log} lacks the records {missing} of {place}, with which lane {lane.id} began",
                next_step=f"Some rows would be missing without them. {step}, or load the lane again with "
                f"`replicator lanes resync {lane.id}`.",
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
        said = json.loads(words)
        return SwapRequest(str(said["table"]), str(said["into"]), str(said["digest"]))
    except (ValueError, KeyError, TypeError) as wrong:
        raise ConfigProblem(
            "a swap needs the table, its new target and the digest of the rules", next_step="Use `replicator replay TABLE`."
        ) from wrong
