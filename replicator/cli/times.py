"""Times as commands take them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

FORMS = ("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d")
"""How a time may be written."""
IN_UTC = "UTC where it has no zone"
"""What is said of every time that a command takes."""


class Moment(click.DateTime):
    """A time with its zone; one that is written without is of UTC."""

    def __init__(self) -> None:
        super().__init__(FORMS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The time, aware."""
        found = super().convert(value, param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


MOMENT = Moment()
