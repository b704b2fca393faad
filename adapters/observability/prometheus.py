"""Metrics in Prometheus' format. Names, labels and units are a public contract. No label contains a key or an offset."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from replicator.ports.runtime import (
    LaneCommitted,
    LaneUp,
    Measurement,
    OpenDeadLetters,
    RecordsRead,
    RecordsRejected,
    SourceLag,
    StreamPace,
    TargetCompared,
)
from replicator.ports.source import Pace
from replicator.ports.stores import DeadLetterGroup

OUTCOMES = ("applied", "folded", "superseded", "duplicate", "filtered", "rejected")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class PrometheusTelemetry:
    """`ports.runtime.Telemetry` with its own registry."""

    def __init__(self, version: str = "") -> None:
        self.registry = CollectorRegistry()
        self._consumed = self._counter("records_consumed", "Records read from a source", "source")
        self._ignored = self._counter("records_ignored", "Records that carry no change of a table", "source", "kind")
        self._rejects = self._counter("rejects", "Records rejected", "source", "table", "stage", "code")
        self._open = self._gauge("dead_letters", "Dead letters that are open", "source", "table", "lane")
        self._changes = self._counter("changes", "Changes by what became of them", "lane", "outcome")
        self._seconds = Histogram(
            "replicator_apply_duration_seconds", "Time of one apply", ["lane"], buckets=SECONDS, registry=self.registry
        )
        self._freshness = self._gauge("freshness_seconds", "Now minus event time of the newest applied change", "lane")
        self._lag = self._gauge("lag_records", "Records between the lowest lane and the end of the source", "source")
        self._up = self._gauge("lane_up", "1 while the lane applies, 0 while it is suspended or paused", "lane")
        self._diff_rows = self._gauge("diff_rows", "Rows that differ from the source", "lane", "kind")
        self._diff_time = self._gauge("diff_timestamp_seconds", "Time of the last comparison with the source", "lane")
        self._groups: set[DeadLetterGroup] = set()
        self._engines: dict[str, Gauge] = {}
        self._gauge("build_info", "Always 1", "version").labels(version).set(1)

    def record(self, measured: Measurement) -> None:
        match measured:
            case RecordsRead(source, records, ignored):
                self._consumed.labels(source).inc(records)
                for kind, number in ignored.items():
                    self._ignored.labels(source, kind).inc(number)
            case RecordsRejected(source, table, stage, code, records):
                self._rejects.labels(source, table, stage, code).inc(records)
            case OpenDeadLetters(counts):
                self._set_dead_letters(counts)
            case LaneCommitted():
                self._add_commit(measured)
            case LaneUp(lane, up):
                self._up.labels(lane).set(1 if up else 0)
            case SourceLag(source, records):
                self._lag.labels(source).set(math.nan if records is None else records)
            case StreamPace(source, engine, pace):
                self._set_pace(source, engine, pace)
            case TargetCompared():
                self._set_compared(measured)

    def _add_commit(self, commit: LaneCommitted) -> None:
        for outcome, count in zip(OUTCOMES, commit.counts.as_tuple(), strict=True):
            self._changes.labels(commit.lane, outcome).inc(count)
        self._seconds.labels(commit.lane).observe(commit.seconds)
        newest = commit.newest
        if newest is not None:
            self._freshness.labels(commit.lane).set_function(lambda: time.time() - newest / 1e6)

    def _set_compared(self, compared: TargetCompared) -> None:
        for kind, number in compared.rows.items():
            self._diff_rows.labels(compared.lane, kind).set(number)
        self._diff_time.labels(compared.lane).set(compared.at)

    def _set_dead_letters(self, counts: Mapping[DeadLetterGroup, int]) -> None:
        for group in self._groups - counts.keys():
            self._open.remove(group.source, group.table, group.lane)
        self._groups = set(counts)
        for group, records in counts.items():
            self._open.labels(group.source, group.table, group.lane).set(records)

    def _set_pace(self, source: str, engine: str, pace: Pace) -> None:
        values = {
            "batch_duration_seconds": (pace.batch_seconds, "Time of the last batch of the engine's stream"),
            "input_rows_per_second": (pace.input_rows_per_second, "Rows that come into the engine's stream"),
            "processed_rows_per_second": (pace.processed_rows_per_second, "Rows that the engine's stream applies"),
            "lag_records": (pace.lag_records, "Records between the last batch of the engine's stream and the end"),
        }
        for name, (value, help_text) in values.items():
            if value is None:
                continue
            metric = re.sub(r"\W", "_", f"{engine}_{name}")
            if metric not in self._engines:
                self._engines[metric] = self._gauge(metric, help_text, "source")
            self._engines[metric].labels(source).set(value)

    def text(self) -> bytes:
        """The metrics page."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"replicator_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"replicator_{name}", help_text, labels, registry=self.registry)
