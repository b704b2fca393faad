"""Metrics in Prometheus' format. Names, labels and units are the public contract; no label holds a key or an offset."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from replicator.domain.plan import Counts

OUTCOMES = ("applied", "folded", "superseded", "duplicate", "filtered", "rejected")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class PrometheusTelemetry:
    """`ports.telemetry.Telemetry` on a registry of its own."""

    def __init__(self, version: str = "") -> None:
        self.registry = CollectorRegistry()
        self._consumed = self._counter("records_consumed", "Records read from a source", "source")
        self._ignored = self._counter("records_ignored", "Records that carry no change of a table", "source", "kind")
        self._changes = self._counter("changes", "Changes by what became of them", "lane", "outcome")
        self._seconds = Histogram(
            "replicator_apply_duration_seconds", "Time of one apply", ["lane"], buckets=SECONDS, registry=self.registry
        )
        self._freshness = self._gauge("freshness_seconds", "Now minus event time of the newest applied change", "lane")
        self._lag = self._gauge("lag_records", "Records between the lowest lane and the end of the source", "source")
        self._up = self._gauge("lane_up", "1 while the lane applies, 0 while it is suspended or paused", "lane")
        self._gauge("build_info", "Always 1", "version").labels(version).set(1)

    def consumed(self, source: str, records: int) -> None:
        """See `ports.telemetry.Telemetry`."""
        self._consumed.labels(source).inc(records)

    def ignored(self, source: str, kind: str, records: int) -> None:
        """See `ports.telemetry.Telemetry`."""
        self._ignored.labels(source, kind).inc(records)

    def changes(self, lane: str, counts: Counts) -> None:
        """See `ports.telemetry.Telemetry`."""
        for outcome, count in zip(OUTCOMES, counts.as_tuple(), strict=True):
            self._changes.labels(lane, outcome).inc(count)

    def applied(self, lane: str, seconds: float, newest: int | None) -> None:
        """See `ports.telemetry.Telemetry`."""
        self._seconds.labels(lane).observe(seconds)
        if newest is not None:
            self._freshness.labels(lane).set_function(lambda: time.time() - newest / 1e6)

    def lag(self, source: str, records: int) -> None:
        """See `ports.telemetry.Telemetry`."""
        self._lag.labels(source).set(records)

    def lane_up(self, lane: str, up: bool) -> None:
        """See `ports.telemetry.Telemetry`."""
        self._up.labels(lane).set(1 if up else 0)

    def text(self) -> bytes:
        """The metrics page."""
        return generate_latest(self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"replicator_{name}", what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"replicator_{name}", what, labels, registry=self.registry)
