"""Options of the outbox decoder, with validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, field_validator

from replicator.domain.sequence import MAX_EPOCH
from replicator.domain.transform.columns import Mask

from ...arrow.record_limits import RecordLimits
from ..common.row_options import read_options as read

AGGREGATE = "{aggregatetype}"
FIELDS = ("id", "aggregatetype", "aggregateid", "type", "payload")
"""The columns of an outbox table, with the names in Debezium's documentation."""


class OutboxOptions(BaseModel):
    """`route_to`: the name of tables of events, which contains `{aggregatetype}`. `columns`: names of columns in the
    outbox table that differ from Debezium's."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    route_to: str = f"outbox.event.{AGGREGATE}"
    columns: dict[Literal["id", "aggregatetype", "aggregateid", "type", "payload"], str] = Field(default_factory=dict)

    @field_validator("route_to")
    @classmethod
    def _check_route_to(cls, value: str) -> str:
        if value.count(AGGREGATE) != 1 or set("{}") & set(value.replace(AGGREGATE, "")):
            raise ValueError(f"must hold {AGGREGATE} once, and no other braces")
        return value

    def to_table(self, aggregate: str) -> str:
        """The table of an aggregate's events."""
        return self.route_to.replace(AGGREGATE, aggregate)

    def to_aggregate(self, topic: str) -> str | None:
        """The aggregate whose events the topic contains; None if the name does not match."""
        found = self._topic_pattern.fullmatch(topic)
        return found[1] if found else None

    @cached_property
    def _topic_pattern(self) -> re.Pattern[str]:
        before, _, after = self.route_to.partition(AGGREGATE)
        return re.compile(f"{re.escape(before)}(.+){re.escape(after)}")


class OutboxDecoderOptions(BaseModel):
    """Options of `DebeziumOutboxDecoder`. Tables declare neither columns nor keys, because events define them. `epoch`
    has no effect on events, which have no log positions. `private`: for each table the masks of columns, and of payload
    fields as `payload.NAME`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    outbox: OutboxOptions = OutboxOptions()
    declared: dict[str, dict[str, str]] = Field(default_factory=dict, alias="schema")
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    tombstones: Literal["ignore"] | dict[str, Literal["ignore"]] = "ignore"
    epoch: int = Field(default=0, ge=0, le=MAX_EPOCH)
    private: dict[str, dict[str, InstanceOf[Mask]]] = Field(default_factory=dict)
    limits: RecordLimits = RecordLimits()

    @field_validator("declared", "keys")
    @classmethod
    def _refuse_declared(cls, value: dict[str, Any]) -> dict[str, Any]:
        if any(value.values()):
            raise ValueError("the columns and the key of events are not declared")
        return value


def read_options(options: Mapping[str, object]) -> OutboxDecoderOptions:
    """The validated options. Raises ConfigProblem that names every wrong option without its value."""
    return read(OutboxDecoderOptions, options, "debezium_outbox")
