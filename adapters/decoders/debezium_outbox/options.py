"""The options of the decoder, checked on their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, field_validator

from replicator.domain.columns import Mask
from replicator.domain.sequence import MAX_EPOCH

from ...arrow.json.limits import Limits
from ...arrow.options import read_options as read

AGGREGATE = "{aggregatetype}"
FIELDS = ("id", "aggregatetype", "aggregateid", "type", "payload")
"""The columns of an outbox table, as Debezium's documentation calls them."""


class Outbox(BaseModel):
    """`route_to`: what tables of events are called, with `{aggregatetype}` in it. `columns`: what a column of the outbox
    table is called there, where it is not what Debezium expects."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    route_to: str = f"outbox.event.{AGGREGATE}"
    columns: dict[Literal["id", "aggregatetype", "aggregateid", "type", "payload"], str] = Field(default_factory=dict)

    @field_validator("route_to")
    @classmethod
    def _names_the_aggregate_once(cls, value: str) -> str:
        if value.count(AGGREGATE) != 1 or set("{}") & set(value.replace(AGGREGATE, "")):
            raise ValueError(f"must hold {AGGREGATE} once, and no other braces")
        return value

    def table_of(self, aggregate: str) -> str:
        """What the table of an aggregate's events is called."""
        return self.route_to.replace(AGGREGATE, aggregate)

    def aggregate_of(self, topic: str) -> str | None:
        """The aggregate whose events a topic holds; None where its name does not say."""
        found = self._topics.fullmatch(topic)
        return found[1] if found else None

    @cached_property
    def _topics(self) -> re.Pattern[str]:
        before, _, after = self.route_to.partition(AGGREGATE)
        return re.compile(f"{re.escape(before)}(.+){re.escape(after)}")


class Options(BaseModel):
    """What `DebeziumOutboxDecoder` takes. Tables declare neither columns nor keys: those of events are what they are.
    `epoch` is of log positions, which events have none of. `private`: per table the masks of columns, and of fields of the
    payload, called `payload.NAME`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    outbox: Outbox = Outbox()
    declared: dict[str, dict[str, str]] = Field(default_factory=dict, alias="schema")
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    tombstones: Literal["ignore"] | dict[str, Literal["ignore"]] = "ignore"
    epoch: int = Field(default=0, ge=0, le=MAX_EPOCH)
    private: dict[str, dict[str, InstanceOf[Mask]]] = Field(default_factory=dict)
    limits: Limits = Limits()

    @field_validator("declared", "keys")
    @classmethod
    def _nothing_is_declared(cls, value: dict[str, Any]) -> dict[str, Any]:
        if any(value.values()):
            raise ValueError("the columns and the key of events are not declared")
        return value


def read_options(options: Mapping[str, object]) -> Options:
    """The options, or ConfigProblem that names every wrong one without its value."""
    return read(Options, options, "debezium_outbox")
