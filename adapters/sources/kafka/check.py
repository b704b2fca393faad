"""Check of the broker for `doctor`: reachable, with the wanted topics, sufficient retention and replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replicator.domain.errors import ReplicatorError, describe_reload_or_skip
from replicator.domain.patterns import describe_unmatched
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.ports.runtime import Diagnosis

from ...arrow.record_errors import find_table_entry
from .cluster import Cluster, Topic, list_partitions
from .options import KafkaSettings

COPIES = 3
"""Replicas of a topic that survive the loss of one broker while another one is down for maintenance."""


class KafkaCheck:
    """`ports.runtime.Check`. Options of `KafkaSource`, `positions` (lane id to `Position.to_json`), `production`, and
    `readers` (table name or glob to the fields of `TableReaders`)."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        own = dict(options)
        self._name = name
        self._positions = {lane: Position.from_json(p) for lane, p in own.pop("positions", {}).items()}
        self._production = bool(own.pop("production", False))
        self._readers = {table: TableReaders(**readers) for table, readers in own.pop("readers", {}).items()}
        self._options = KafkaSettings.read(own)

    def diagnose(self) -> Sequence[Diagnosis]:
        findings: list[Diagnosis] = []
        try:
            findings.extend(self._check_cluster(Cluster(self._options)))
        except ReplicatorError as problem:
            findings.append(Diagnosis("error", self._name, problem.sentence, problem.next_step))
        return findings

    def _check_cluster(self, cluster: Cluster) -> Iterator[Diagnosis]:
        names = cluster.names()
        yield Diagnosis("ok", self._name, f"The broker at {self._options.bootstrap_servers} answers.")
        topics = cluster.describe_topics(filter(cluster.wanted, names))
        if topics:
            count = len(list_partitions(topics))
            yield Diagnosis("ok", self._name, f"Topics that match `topics`: {len(topics)}, with partitions: {count}.")
        for pattern, similar in cluster.wanted.find_unmatched_with_similar(names).items():
            step = "Correct `topics` of the source. Or check that the connector runs, and compare its topic.prefix: it "
            step += "creates a topic with the first row of a table."
            yield Diagnosis("warning", self._name, describe_unmatched(pattern, similar), step)
        if topics:
            yield from self._check_replicas(topics)
            settings = cluster.settings(sorted(topics))
            yield from check_compaction(self._name, settings, self._readers)
            firsts, ends = (at(list_partitions(topics)) for at in (cluster.beginnings, cluster.ends))
            now = time.time()
            for lane, position in sorted(self._positions.items()):
                behind = LaneBacklog(self._name, lane, position, firsts, ends)
                yield from check_retention(behind, settings, cluster.offsets_at, now)

    def _check_replicas(self, topics: Mapping[str, Topic]) -> Iterator[Diagnosis]:
        few = [name for name in sorted(topics) if any(wanted < COPIES for wanted, _ in topics[name].replicas)]
        if few and self._production:
            step = f"Raise the factor to {COPIES} (kafka-reassign-partitions), and set default.replication.factor={COPIES}."
            text = f"Topics with a replication factor below {COPIES}: {len(few)} of {len(topics)}, for example {few[0]}."
            yield Diagnosis("warning", self._name, text, step)
        behind = [n for n in sorted(topics) if any(in_sync < wanted for wanted, in_sync in topics[n].replicas)]
        if behind:
            step = "See which broker is down: kafka-topics --describe --under-replicated-partitions."
            yield Diagnosis(
                "warning",
                self._name,
                f"Replicas are not in sync in {format_count(len(behind), 'topic')}, for example {behind[0]}.",
                step,
            )


# Effects of topic compaction on the readers of a table.


@dataclass(frozen=True)
class TableReaders:
    """The readers of a table. `every`: those that need every change. `ignores_tombstones`: those that skip null."""

    every: Sequence[str] = ()
    ignores_tombstones: Sequence[str] = ()


def check_compaction(subject: str, settings: Settings, readers: Mapping[str, TableReaders]) -> Iterator[Diagnosis]:
    """Warnings for compacted topics that lack changes for some reader. `readers`: by table name or glob."""
    for topic in sorted(topic for topic, config in settings.items() if "compact" in config.get("cleanup.policy", "")):
        parts = topic.split(".")  # `<prefix>.<schema>.<table>`, or only the table.
        entries = (find_table_entry(readers, ".".join(parts[-count:])) for count in (2, 1, len(parts)))
        mine = next(filter(None, entries), TableReaders())
        if mine.every:
            text = (
                f"Topic {topic} is compacted, so it keeps the last change of a key, and "
                f"{', '.join(mine.every)} {'wants' if len(mine.every) == 1 else 'want'} every change."
            )
            step = "Set cleanup.policy=delete for it, or read the topic only under the policy scd1."
            yield Diagnosis("warning", subject, text, step)
        if mine.ignores_tombstones:
            text = (
                f"Topic {topic} is compacted, so for a delete it may keep only a message without a value. "
                f"These messages are ignored by {', '.join(mine.ignores_tombstones)}."
            )
            yield Diagnosis("warning", subject, text, "Write `tombstones: delete` for its table.")


# Check that the broker keeps records until every lane has read them.

OffsetsAt = Callable[[Iterable[TopicPartition], float], Mapping[TopicPartition, int]]
"""For each partition the offset of the first record not older than a time in seconds; the end if there is none."""
Settings = Mapping[str, Mapping[str, str]]

WARNING_SHARE, ERROR_SHARE = 0.5, 0.1
"""Remaining shares of the retention time for a warning, and for an error."""


@dataclass(frozen=True)
class LaneBacklog:
    """A lane with its position. `name`: the subject of diagnoses. `firsts`, `ends`: the offsets on the broker."""

    name: str
    lane: str
    position: Position
    firsts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def check_retention(behind: LaneBacklog, settings: Settings, offsets_at: OffsetsAt, now: float) -> Iterator[Diagnosis]:
    """Diagnoses for unread records that are lost or will be soon. Empty if everything was read."""
    unread = [p for p, offset in behind.position.items() if offset < behind.ends.get(p, 0)]
    lost = [p for p in unread if behind.position[p] < behind.firsts[p]]
    if lost:
        sentence = f"Lane {behind.lane} has not read records of {lost[0]} that the broker no longer has."
        yield Diagnosis("error", behind.name, sentence, describe_reload_or_skip(behind.lane))
    left = [p for p in unread if p not in lost]
    late = _check_time(behind, left, settings, offsets_at, now) or _check_size(behind, left, settings)
    if late:
        yield late
    elif left and not lost:
        count = sum(behind.ends[p] - behind.position[p] for p in left)
        sentence = f"Lane {behind.lane} is {format_count(count, 'record')} behind. The broker keeps them long enough."
        yield Diagnosis("ok", behind.name, sentence)


def _check_time(
    behind: LaneBacklog, unread: list[TopicPartition], settings: Settings, offsets_at: OffsetsAt, now: float
) -> Diagnosis | None:
    limits = {p: int(settings[p.topic].get("retention.ms", -1)) / 1000 for p in unread if _is_deleting(settings[p.topic])}
    for share, severity in ((ERROR_SHARE, "error"), (WARNING_SHARE, "warning")):
        for seconds in sorted({limit for limit in limits.values() if limit >= 0}):
            mine = [p for p, limit in limits.items() if limit == seconds]
            old = offsets_at(mine, now - seconds * (1 - share))
            late = [p for p in mine if behind.position[p] < old[p]]
            if late:
                kept_for = f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds:.0f} s"
                sentence = (
                    f"Lane {behind.lane} has not read records of {late[0]} that are older than {1 - share:.0%} of the "
                    f"topic's retention time ({kept_for})."
                )
                return Diagnosis("error" if severity == "error" else "warning", behind.name, sentence, _next_step(late[0]))
    return None


def _check_size(behind: LaneBacklog, unread: list[TopicPartition], settings: Settings) -> Diagnosis | None:
    """Sizes are not known in records, so the remaining records of a topic that already drops old ones are used."""
    for p in unread:
        bounded = _is_deleting(settings[p.topic]) and int(settings[p.topic].get("retention.bytes", -1)) >= 0
        share = (behind.ends[p] - behind.position[p]) / max(1, behind.ends[p] - behind.firsts[p])
        if bounded and behind.firsts[p] > 0 and share > WARNING_SHARE:
            sentence = f"Lane {behind.lane} has not read {share:.0%} of {p}, and retention.bytes drops the oldest records."
            return Diagnosis(
                "error" if share > 1 - ERROR_SHARE else "warning", behind.name, sentence, _next_step(p, "bytes")
            )
    return None


def _is_deleting(settings: Mapping[str, str]) -> bool:
    return "delete" in settings.get("cleanup.policy", "delete")


def _next_step(partition: TopicPartition, unit: str = "ms") -> str:
    return (
        f"Start the daemon or repair the lane. Raise retention.{unit} of topic {partition.topic} until the lane has "
        "caught up."
    )
