"""Check of the broker for `doctor`: reachable, with the wanted topics, sufficient retention and replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position
from replicator.domain.topics import describe_unmatched
from replicator.ports.diagnosis import Diagnosis

from .cluster import Cluster, list_partitions
from .compaction import TableReaders, check_compaction
from .options import KafkaOptions
from .retention import LaneBacklog, check_retention

COPIES = 3
"""Replicas of a topic that survive the loss of one broker while another one is down for maintenance."""


class KafkaCheck:
    """`ports.diagnosis.Check`. Options of `KafkaSource`, `positions` (lane id to `Position.to_json`), `production`, and
    `readers` (table name or glob to the fields of `compaction.TableReaders`)."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        own = dict(options)
        self._name = name
        self._positions = {lane: Position.from_json(p) for lane, p in own.pop("positions", {}).items()}
        self._production = bool(own.pop("production", False))
        self._readers = {table: TableReaders(**said) for table, said in own.pop("readers", {}).items()}
        self._options = KafkaOptions.read(own)

    def diagnose(self) -> Sequence[Diagnosis]:
        found: list[Diagnosis] = []
        try:
            found.extend(self._check_cluster(Cluster(self._options)))
        except ReplicatorError as problem:
            found.append(Diagnosis("error", self._name, problem.sentence, problem.next_step))
        return found

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
            yield from self._check_replicas(cluster, sorted(topics))
            settings = cluster.settings(sorted(topics))
            yield from check_compaction(self._name, settings, self._readers)
            firsts, ends = (at(list_partitions(topics)) for at in (cluster.firsts, cluster.ends))
            now = time.time()
            for lane, position in sorted(self._positions.items()):
                behind = LaneBacklog(self._name, lane, position, firsts, ends)
                yield from check_retention(behind, settings, cluster.offsets_at, now)

    def _check_replicas(self, cluster: Cluster, names: Sequence[str]) -> Iterator[Diagnosis]:
        copies = cluster.replicas(names)
        few = [name for name, found in copies.items() if min(found.wanted) < COPIES]
        if few and self._production:
            step = f"Raise the factor to {COPIES} (kafka-reassign-partitions), and set default.replication.factor={COPIES}."
            text = f"Topics with a replication factor below {COPIES}: {len(few)} of {len(names)}, for example {few[0]}."
            yield Diagnosis("warning", self._name, text, step)
        behind = [name for name, found in copies.items() if any(map(int.__lt__, found.in_sync, found.wanted))]
        if behind:
            step = "See which broker is down: kafka-topics --describe --under-replicated-partitions."
            yield Diagnosis(
                "warning",
                self._name,
                f"Replicas are not in sync in {format_count(len(behind), 'topic')}, for example {behind[0]}.",
                step,
            )
