"""From a batch to changes by table, every record accounted for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic

from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch, F, Routed, Run

from .catalog import Catalog
from .problem import ensure
from .roster import Place
from .shared import Shared

UNCONFIGURED = "unconfigured"
LOG_ONLY = "event_log_only"


class Decoding(Generic[F]):
    """Routes and decodes the records of one source; rejects are durable before anything is returned."""

    def __init__(self, place: Place[F], decoder: Decoder, catalog: Catalog[F], shared: Shared[F]) -> None:
        self._source = place.name
        self._decoder = decoder
        self._rules_for = place.rules_for
        self._catalog = catalog
        self._engine = shared.engine
        self._rejects = shared.rejects
        self._telemetry = shared.telemetry

    def route(self, batch: Batch[F], *, again: bool = False) -> Routed[F]:
        """The batch by table. Broken unless every record is decoded, ignored or rejected. `again`: the records were counted
        before (catch-up), so telemetry and `max_rejects` leave them out."""
        routed = self._engine.route(batch.frame, self._decoder)
        decoded = sum(self._engine.count(run.frame) for run in routed.runs)
        accounted = decoded + sum(routed.ignored.values()) + routed.reject_count
        ensure(accounted == batch.records, f"Of {batch.records} records of {self._source}, {accounted} are accounted for.")
        if not again:
            self._count(batch, routed)
        if routed.reject_count:
            kept = self._rejects.keep(routed.rejects, [batch.frame], stage="route", table="")
            ensure(kept == routed.reject_count, f"Of {routed.reject_count} rejected records {kept} became dead letters.")
            self._rejects.count(0 if again else kept)
        return routed

    def changes(
        self, runs: Iterable[Run[F]], batch: Batch[F], *, again: bool = False, seen: Callable[[F], None] | None = None
    ) -> Sequence[F]:
        """The changes of one table's runs, a frame per schema, in order. `catalog.Unusable` when the table cannot be
        replicated. `seen` is told of everything that was decoded, rejects included."""
        runs, parts = tuple(runs), []
        for run in runs:
            self._catalog.schema(run)  # A later run may tell the key that an earlier one lacks.
        for run in runs:
            frame, rejects = self._engine.decode(run, self._decoder, self._catalog.schema(run))
            good, bad = self._engine.count(frame), self._engine.count(rejects)
            records = self._engine.count(run.frame)
            ensure(good + bad >= records, f"Of {records} records of {run.table} only {good + bad} were decoded.")
            if seen is not None:
                seen(frame)
                seen(rejects)
            if bad:
                kept = self._rejects.keep(rejects, [batch.frame], stage="decode", table=run.table)
                self._rejects.count(0 if again else kept)
            if good:
                parts.append(frame)
        return parts

    def _count(self, batch: Batch[F], routed: Routed[F]) -> None:
        self._telemetry.consumed(self._source, batch.records)
        for kind, records in routed.ignored.items():
            self._telemetry.ignored(self._source, kind, records)
        for run in routed.runs:
            rules = self._rules_for(run.table)
            if rules is None or not rules.lanes:
                kind = UNCONFIGURED if rules is None else LOG_ONLY
                self._telemetry.ignored(self._source, kind, self._engine.count(run.frame))
