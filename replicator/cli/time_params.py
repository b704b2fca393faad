"""Times as commands take them, and places in a stream beside them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.position import Position, TopicPartition

TIMES = ("%H:%M:%S%z", "%H:%M:%S.%f%z", "%H:%M:%S", "%H:%M:%S.%f")
FORMS = (*(f"%Y-%m-%d{between}{time}" for between in "T " for time in TIMES), "%Y-%m-%d")
"""How a time may be written."""
IN_UTC = "UTC where it has no zone"
"""What is said of every time that a command takes."""


class TimeParam(click.DateTime):
    """A time with its zone; one that is written without is of UTC."""

    def __init__(self) -> None:
        super().__init__(FORMS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The time, aware."""
        found = super().convert(value, param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


class TimeOrPlacesParam(click.ParamType[datetime | Position]):
    """A time, or the places of the last records that count, as `history` and `audit` tell them: the position behind them."""

    name = "TIME|TOPIC:PARTITION:OFFSET"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | Position:
        """The time, aware, or the position."""
        if isinstance(value, datetime | Position):
            return value
        try:
            return TIME.convert(value, param, ctx)
        except click.UsageError as no_time:
            try:
                return _parse_places(value)
            except ValueError:
                self.fail(f"{no_time.message} Nor is it TOPIC:PARTITION:OFFSET[,...].", param, ctx)


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
    """A length of time as the config has it, such as `30 days`. ConfigProblem for another text."""
    from replicator.settings.fields import DURATION, to_timedelta

    if not re.fullmatch(DURATION, text):
        raise ConfigProblem(f"{text!r} is no time", next_step="Write one such as '12 hours' or '30 days'.")
    return to_timedelta(text)


TIME = TimeParam()
TIME_OR_PLACES = TimeOrPlacesParam()
