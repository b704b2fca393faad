"""Cache of registry schemas for the life of the process: the schema of an id never changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from confluent_kafka.schema_registry import Schema

from replicator.domain.errors import Reject, RejectCode

from ...arrow.record_errors import ValueMisfit, malformed_reject
from ...arrow.record_limits import RecordLimits
from ...kafka.schema_registry.client import Registry, UnknownSchema
from ...kafka.schema_registry.options import RegistryOptions
from ..avro.connect_schema import schema_error
from ..avro.value_schema import NO_SCHEMA, ValueSchema, read_schema

MAX_SCHEMAS = 16_384
LONGEST_SCHEMA = 16 * 1024 * 1024
MISSING_SECONDS = 1.0
"""Seconds before a missing schema is requested again."""


class RegisteredSchemas:
    """The schemas of one registry, each requested once."""

    def __init__(self, registry: Registry, limits: RecordLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._limits, self._clock = registry, limits, clock
        self._known: dict[int, ValueSchema | Reject] = {}
        self._missing: dict[int, float] = {}

    def get_schema(self, number: int) -> ValueSchema | Reject:
        """The schema with that id, or the reason why it is unusable. Raises the errors of `Registry.read_schema`."""
        found = self._known.get(number)
        if found is not None:
            return found
        if self._clock() < self._missing.get(number, 0.0):
            return _unknown_schema_reject(number)
        try:
            schema = self._registry.read_schema(number)
        except UnknownSchema:
            _limit_cache(self._missing)[number] = self._clock() + MISSING_SECONDS
            return _unknown_schema_reject(number)
        made = _limit_cache(self._known)[number] = read_registered_schema(schema, self._limits)
        return made


def _limit_cache(kept: dict[int, Any]) -> dict[int, Any]:
    if len(kept) >= MAX_SCHEMAS:
        kept.clear()
    return kept


def _unknown_schema_reject(number: int) -> Reject:
    return Reject(RejectCode.UNKNOWN_SCHEMA, f"the schema registry has no schema of the id {number}, which the record names")


def read_registered_schema(schema: Schema, limits: RecordLimits) -> ValueSchema | Reject:
    """The value schema of a registered schema, or the reason why it is unusable. Never raises for its content."""
    try:
        return _read_schema(schema, limits)
    except ValueMisfit as unfit:
        return unfit.reject
    except RecursionError:
        return schema_error("is nested too deeply", RejectCode.TOO_LARGE).reject
    except NO_SCHEMA:
        return malformed_reject("its schema is no Avro schema")


def _read_schema(schema: Schema, limits: RecordLimits) -> ValueSchema:
    text = schema.schema_str or ""
    if (schema.schema_type or "AVRO") != "AVRO":
        raise ValueMisfit(RejectCode.MALFORMED, f"its schema is of the type {str(schema.schema_type)[:20]!r}, not AVRO")
    if schema.references:
        raise schema_error("refers to other schemas")
    if len(text) > LONGEST_SCHEMA:
        raise schema_error(f"is longer than {LONGEST_SCHEMA} characters", RejectCode.TOO_LARGE)
    return read_schema(text, limits)


@cache
def get_schemas(options: RegistryOptions, limits: RecordLimits) -> RegisteredSchemas:
    """The schemas of a registry, one cache per process: executors create decoders for every task."""
    return RegisteredSchemas(Registry(options), limits)
