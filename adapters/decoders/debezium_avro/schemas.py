"""The schemas that records name, kept as long as the program runs: what is registered under an id never changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from confluent_kafka.schema_registry import Schema

from replicator.domain.errors import Reject, RejectCode

from ...arrow.connect.schema import refused
from ...arrow.connect.value_schema import NO_SCHEMA, ValueSchema, read_schema
from ...arrow.json.faults import Unfit, malformed
from ...arrow.json.limits import Limits
from ...registry.client import Registry, UnknownSchema
from ...registry.options import RegistryOptions

MAX_SCHEMAS = 16_384
LONGEST_SCHEMA = 16 * 1024 * 1024
MISSING_SECONDS = 1.0
"""How long a registry is not asked again for a schema that it did not have."""


class Schemas:
    """The schemas of one registry, asked for once each."""

    def __init__(self, registry: Registry, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._limits, self._clock = registry, limits, clock
        self._known: dict[int, ValueSchema | Reject] = {}
        self._missing: dict[int, float] = {}

    def of(self, number: int) -> ValueSchema | Reject:
        """The schema of that id, or why it cannot be used. Raises what `Registry.schema` raises."""
        found = self._known.get(number)
        if found is not None:
            return found
        if self._clock() < self._missing.get(number, 0.0):
            return _missing(number)
        try:
            schema = self._registry.schema(number)
        except UnknownSchema:
            _room(self._missing)[number] = self._clock() + MISSING_SECONDS
            return _missing(number)
        made = _room(self._known)[number] = known_of(schema, self._limits)
        return made


def _room(kept: dict[int, Any]) -> dict[int, Any]:
    if len(kept) >= MAX_SCHEMAS:
        kept.clear()
    return kept


def _missing(number: int) -> Reject:
    return Reject(RejectCode.UNKNOWN_SCHEMA, f"the schema registry has no schema of the id {number}, which the record names")


def known_of(schema: Schema, limits: Limits) -> ValueSchema | Reject:
    """What a registered schema says of records; never raises for what it says."""
    try:
        return _read(schema, limits)
    except Unfit as unfit:
        return unfit.reject
    except RecursionError:
        return refused("is nested too deeply", RejectCode.TOO_LARGE).reject
    except NO_SCHEMA:
        return malformed("its schema is no Avro schema")


def _read(schema: Schema, limits: Limits) -> ValueSchema:
    text = schema.schema_str or ""
    if (schema.schema_type or "AVRO") != "AVRO":
        raise Unfit(RejectCode.MALFORMED, f"its schema is of the type {str(schema.schema_type)[:20]!r}, not AVRO")
    if schema.references:
        raise refused("refers to other schemas")
    if len(text) > LONGEST_SCHEMA:
        raise refused(f"is longer than {LONGEST_SCHEMA} characters", RejectCode.TOO_LARGE)
    return read_schema(text, limits)


@cache
def schemas_of(options: RegistryOptions, limits: Limits) -> Schemas:
    """The schemas of a registry in this process: decoders come and go, on executors with every task."""
    return Schemas(Registry(options), limits)
