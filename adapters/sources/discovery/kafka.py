"""Reads some records of each topic of a broker, to find its format and tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.patterns import TopicFilter
from replicator.ports.source import DiscoveredSource

from ..kafka.cluster import Cluster, list_partitions
from ..kafka.options import KafkaSettings
from ..kafka.reader import PartitionReader
from .records import describe_topic, keep_globs, list_sources

SAMPLE = 20
"""The last records of each partition that are read."""
SECONDS = 20.0
"""The time for all of them."""


def discover_topics(url: str, _: str | None) -> Sequence[DiscoveredSource]:
    """`ports.source.Discover` of kafka://BROKER[,BROKER][/TOPICS]: a source for each format. `TOPICS`: names and globs,
    with commas between them; by default all topics whose names do not start with an underscore."""
    servers, _, names = url.partition("://")[2].partition("/")
    if "@" in url or not servers:
        step = (
            "Write kafka://BROKER[,BROKER][/TOPICS]. Write a source with a login by hand: "
            "docs/how-to/secure-a-deployment.md."
        )
        raise ConfigProblem("a URL of Kafka has brokers, and no user or password", next_step=step)
    patterns = [unquote(name) for name in names.split(",") if name]
    options = KafkaSettings.read({"bootstrap_servers": servers, "topics": patterns or ["*"]})
    cluster = Cluster(options)
    existing = cluster.names()
    topics = sorted(name for name in existing if cluster.wanted(name) and (patterns or not name.startswith("_")))
    if not topics:
        listed = ", ".join(sorted(existing)) or "none"
        raise ConfigProblem(f"no topic at {servers} matches {names or '*'}", next_step=f"The topics are: {listed}.")
    raw = _read_samples(options, cluster, topics)
    described = {topic: describe_topic(topic, raw.filter(pc.equal(raw["topic"], topic))) for topic in topics}
    settings = {"transport": "kafka", "bootstrap_servers": servers}

    def locate(topics: list[str]) -> dict[str, object]:
        globs = keep_globs(patterns, topics, described)
        others = [topic for topic in topics if not TopicFilter(globs)(topic)]
        return {**settings, "topics": [*globs, *_fold_topics(others, existing)]}

    first, *others = list_sources("kafka", f"Kafka at {servers}", described, locate)
    unmatched = ", ".join(cluster.wanted.find_unmatched(existing))
    steps = [*first.steps, *([f"# Left out, because no topic matches: {unmatched}"] if unmatched else [])]
    return [replace(first, steps=steps), *others]


def _read_samples(options: KafkaSettings, cluster: Cluster, topics: Iterable[str]) -> pa.Table:
    """The last records of each topic, schema `RAW`."""
    partitions = list_partitions(cluster.describe_topics(topics))
    firsts, ends = cluster.beginnings(partitions), cluster.ends(partitions)
    reader, batches, until = PartitionReader(options, cluster.note_error), [], time.monotonic() + SECONDS
    try:
        reader.assign({p: max(firsts[p], ends[p] - SAMPLE) for p in partitions}, ends)
        while not reader.is_finished() and time.monotonic() < until:
            batches += reader.gather(0.5).chunks
    finally:
        reader.close()
    return pa.Table.from_batches(batches, schema=RAW)


def _fold_topics(topics: Sequence[str], existing: Iterable[str]) -> Iterator[str]:
    """Topics, or a glob for several of one prefix that no other topic has."""
    groups: dict[str, list[str]] = {}
    for topic in topics:
        groups.setdefault(topic.rpartition(".")[0], []).append(topic)
    for prefix, group in groups.items():
        others = {name for name in existing if name.startswith(f"{prefix}.")} - set(group)
        yield from [f"{prefix}.*"] if prefix and len(group) > 1 and not others else group
