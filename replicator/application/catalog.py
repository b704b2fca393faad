"""The tables of one source as their change events describe them, and the plan of every lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Generic

import pyarrow as pa

from replicator.domain.change import refuse_frame_names
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.plan import ApplyPlan
from replicator.domain.policies import plan_for
from replicator.domain.table import Column, TableSpec
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import F, Lane, Run

from .rules import RulesFor

KNOWN_SCHEMAS = 64
"""Fingerprints kept per table; the schema of an older one is learnt again when it comes back."""


class Unusable(Exception):
    """A table cannot be replicated as it is; `cause` says why. Concerns the lanes of this table only."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Catalog(Generic[F]):
    """Learns each schema fingerprint once. Used by the thread of its source only.

    `keys`: the keys of tables as known from before. A table keeps its key when records do not tell it (a truncate), and
    gets one when only its first records did not tell it.
    """

    def __init__(
        self, engine: Engine[F], decoder: Decoder, rules_for: RulesFor, keys: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self._keys = keys if keys is not None else {}
        self._engine = engine
        self._decoder = decoder
        self._rules_for = rules_for
        self._learnt: dict[str, dict[str, TableSpec]] = {}
        self._unions: dict[str, TableSpec] = {}
        self._plans: dict[str, tuple[TableSpec, ApplyPlan]] = {}

    def schema(self, run: Run[F]) -> TableSpec:
        """The table as this run's fingerprint describes it. Unusable when it cannot be replicated."""
        known = self._learnt.setdefault(run.table, {})
        if run.fingerprint in known:
            return known[run.fingerprint]
        try:
            learnt = self._learn(run)
        except Exception as error:
            raise Unusable(error) from error
        known = self._learnt[run.table]
        known[run.fingerprint] = learnt
        if len(known) > KNOWN_SCHEMAS:
            known.pop(next(iter(known)))
        return learnt

    def table(self, name: str) -> TableSpec | None:
        """The union of every schema seen of the table; None before its first record."""
        return self._unions.get(name)

    def forget(self, name: str) -> None:
        """Learn the table anew from its next record, as if it had never been seen."""
        self._unions.pop(name, None)
        self._learnt.pop(name, None)

    def plan(self, lane: Lane) -> ApplyPlan:
        """The lane's plan for its table as known now. ConfigProblem, with the line, when its policy does not suit it."""
        table = self._unions[lane.table]
        known = self._plans.get(lane.id)
        if known is None or known[0] is not table:
            known = (table, _plan(lane, table))
            self._plans[lane.id] = known
        return known[1]

    def _learn(self, run: Run[F]) -> TableSpec:
        learnt = self._keyed(self._engine.learn(run, self._decoder))
        learnt.refuse_reserved_names()
        learnt.refuse_keys_alike()
        refuse_frame_names(learnt)
        self._unite(learnt)
        return learnt

    def _keyed(self, table: TableSpec) -> TableSpec:
        rules = self._rules_for(table.name)
        if rules and rules.keys:
            return table.with_keys(rules.keys)
        union = self._unions.get(table.name)
        known = (union.keys if union else ()) or self._keys.get(table.name, ())
        return table if table.keys or not set(known) <= set(table.column_names) else table.with_keys(known)

    def _unite(self, newer: TableSpec) -> None:
        known = self._unions.get(newer.name)
        if known is not None and newer.keys and not known.keys:
            known = known.with_keys(newer.keys)
            learnt = self._learnt[newer.name]
            self._learnt[newer.name] = {f: spec.with_keys(newer.keys) for f, spec in learnt.items()}
        self._unions[newer.name] = newer if known is None else united(known, newer)


def _plan(lane: Lane, table: TableSpec) -> ApplyPlan:
    try:
        return plan_for(lane.policy, table, lane.watermark, lane.shape, tracked=lane.tracked, retention=lane.retention)
    except ConfigProblem as error:
        where = f" ({lane.config_line})" if lane.config_line else ""
        raise ConfigProblem(error.sentence, next_step=f"{error.next_step}{where}") from error


def united(known: TableSpec, newer: TableSpec) -> TableSpec:
    """The union of both: columns of `known` first, each with the wider type of the two. Fatal when neither type holds all
    values of the other, or when the key or the sequence became another."""
    if known.keys != newer.keys or known.sequence != newer.sequence:
        raise Fatal(
            f"the key of table {known.name} changed from ({', '.join(known.keys)}) to ({', '.join(newer.keys)})",
            next_step=_reload(known.name),
        )
    types = {c.name: c for c in newer.columns}
    kept = tuple(_wider(known.name, c, types.get(c.name, c)) for c in known.columns)
    union = replace(known, columns=kept).union(newer)
    return known if union.columns == known.columns else union


def _wider(table: str, known: Column, newer: Column) -> Column:
    if holds(known.type, newer.type):
        return known
    if holds(newer.type, known.type):
        return replace(known, type=newer.type)
    raise Fatal(
        f"column {known.name!r} of table {table} changed its type from {known.type} to {newer.type}, "
        "and neither holds every value of the other",
        next_step=_reload(table),
    )


def _reload(table: str) -> str:
    return f"Reload the lanes of {table} with `replicator lanes resync LANE` once all its records have the new schema."


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """True when every value of `narrow` is a value of `wide`, unchanged and told apart as before."""
    if wide == narrow or pa.types.is_null(narrow):
        return True
    if pa.types.is_decimal(wide):
        whole, scale = _digits(narrow)
        return whole >= 0 and wide.scale >= scale and wide.precision - wide.scale >= whole
    if pa.types.is_integer(wide) and pa.types.is_integer(narrow):
        return _holds_integers(wide, narrow)
    if pa.types.is_floating(wide):
        return _mantissa(narrow) <= {16: 11, 32: 24, 64: 53}[wide.bit_width]
    if pa.types.is_timestamp(wide) and pa.types.is_timestamp(narrow):
        units = ("s", "ms", "us", "ns")
        return bool(wide.tz == narrow.tz and units.index(wide.unit) >= units.index(narrow.unit))
    return bool(pa.types.is_large_string(wide) and pa.types.is_string(narrow))


def _holds_integers(wide: pa.DataType, narrow: pa.DataType) -> bool:
    signed_wide, signed_narrow = pa.types.is_signed_integer(wide), pa.types.is_signed_integer(narrow)
    if signed_wide == signed_narrow:
        return bool(wide.bit_width >= narrow.bit_width)
    return bool(signed_wide and wide.bit_width > narrow.bit_width)


def _digits(narrow: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point; (-1, 0) for what is no exact number."""
    if pa.types.is_decimal(narrow):
        return narrow.precision - narrow.scale, narrow.scale
    if pa.types.is_integer(narrow):
        return {8: 3, 16: 5, 32: 10, 64: 20}[narrow.bit_width], 0
    return -1, 0


def _mantissa(narrow: pa.DataType) -> int:
    """The bits a binary float needs to hold every value; too many for anything else."""
    if pa.types.is_floating(narrow):
        return {16: 11, 32: 24, 64: 53}[narrow.bit_width]
    if pa.types.is_integer(narrow):
        return int(narrow.bit_width)
    return 1000
