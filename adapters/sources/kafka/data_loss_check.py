"""Errors for positions from which a stream cannot continue."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.domain.errors import DataLoss
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.domain.remedies import describe_reload_or_skip

from .cluster import Cluster, Topic, list_partitions


def find_losses(
    cluster: Cluster, topics: Mapping[str, Topic], position: Position, identity: Mapping[str, str]
) -> dict[TopicPartition, str]:
    """For each partition of `position` that `topics` cannot continue, the error. Unwanted topics are ignored."""
    there = set(list_partitions(topics))
    asked = [p for p in position if cluster.wanted(p.topic)]
    found = {p: describe_missing(p, topics) for p in asked if p not in there}
    found |= {p: s for p in asked if p in there and (s := describe_recreated(p.topic, topics[p.topic].id, identity))}
    left = [p for p in asked if p not in found]
    firsts, ends = cluster.firsts(left), cluster.log_ends(left)
    return found | {p: s for p in left if (s := describe_out_of_range(p, position[p], firsts[p], ends[p]))}


def describe_missing(partition: TopicPartition, topics: Mapping[str, Topic]) -> str:
    """The error for a missing partition."""
    if partition.topic not in topics:
        return f"Topic {partition.topic} is gone from the broker."
    count = topics[partition.topic].partitions
    return f"Partition {partition} is gone: the topic has {format_count(count, 'partition')} now, so it was created again."


def describe_recreated(topic: str, now: str, identity: Mapping[str, str]) -> str:
    """The error for a topic whose id changed, or empty text. A topic without a known id passes."""
    before = identity.get(topic, "")
    if not before or not now or before == now:
        return ""
    return f"Topic {topic} was deleted and created again (its id was {before} and is {now}): offsets mean other records now."


def describe_out_of_range(partition: TopicPartition, offset: int, first: int, end: int) -> str:
    """The error for an offset outside [first, end], or empty text."""
    if offset < first:
        return (
            f"Records {offset} to {first - 1} of {partition} are gone from the broker: "
            f"retention or a deletion removed them before they were applied."
        )
    if offset > end:
        return (
            f"Offset {offset} of {partition} lies above the stream's end at {end}: "
            f"the topic was created again, or the broker lost or restored its data."
        )
    return ""


def refuse_losses(found: Mapping[TopicPartition, str]) -> None:
    """Raise DataLoss with all sentences in `found`, if there are any."""
    if found:
        raise DataLoss(" ".join(sorted(set(found.values()))), next_step=describe_reload_or_skip())
