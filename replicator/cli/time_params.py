"""Types of parameters: times, and positions in a stream."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.position import Position, TopicPartition

TIMES = ("%H:%M:%S%z", "%H:%M:%S.%f%z", "%H:%M:%S", "%H:%M:%S.%f")
FORMS = (*(f"%Y-%m-%d{between}{time}" for between in "T " for time in TIMES), "%Y-%m-%d")
"""Formats of a time."""
EXAMPLE = "2026-01-31T12:00:00Z"
IN_UTC = "Without a time zone it is UTC."
"""A sentence for the help of every time."""


class TimeParam(click.DateTime):
    """A time with its zone. Without a zone it is UTC."""

    def __init__(self) -> None:
        super().__init__(FORMS)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """A word instead of all formats."""
        return "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The time, aware."""
        try:
            found = super().convert(value, param, ctx)
        except click.UsageError:
            self.fail(f"{value!r} is not a time such as 2026-01-31 or {EXAMPLE}.", param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


class TimeOrPlacesParam(click.ParamType[datetime | Position]):
    """A time, or the position behind the last records that count. `history` and `audit` print TOPIC:PARTITION:OFFSET."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | Position:
        """The time, aware, or the position."""
        if isinstance(value, datetime | Position):
            return value
        try:
            return TIME.convert(value, param, ctx)
        except click.UsageError:
            try:
                return _parse_places(value)
            except ValueError:
                self.fail(f"{value!r} is not a time such as {EXAMPLE}, and not TOPIC:PARTITION:OFFSET[,...].", param, ctx)


def _parse_places(text: str) -> Position:
    found: dict[TopicPartition, int] = {}
    for item in text.split(","):
        topic, partition, offset = item.strip().rsplit(":", 2)
        place = TopicPartition(topic, int(partition))
        if not topic or place in found or place.partition < 0 or int(offset) < 0:
            raise ValueError(item)
        found[place] = int(offset) + 1
    return Position(found)


def parse_duration(text: str) -> timedelta:
    """A duration in the form of the config, such as `30 days`. ConfigProblem for another text."""
    from replicator.ports.options import DURATION, to_timedelta

    if not re.fullmatch(DURATION, text):
        raise ConfigProblem(f"{text!r} is not a duration", next_step="Write a duration such as '12 hours' or '30 days'.")
    return to_timedelta(text)


TIME = TimeParam()
TIME_OR_PLACES = TimeOrPlacesParam()
