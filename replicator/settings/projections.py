"""Settings of projections: tables that a query computes from others."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from .fields import ConfigPath, Into, Name, Strict, _check_duration, make_value_error

REFRESH_WORDS = ("on_change", "manual")


def _check_refresh(value: Any) -> Any:
    if value in REFRESH_WORDS:
        return value
    try:
        return _check_duration(value)
    except ValueError:
        raise make_value_error("refresh", "must be on_change, manual, or a time such as 5 minutes") from None


def _check_parameter(value: Any) -> Any:
    if not isinstance(value, (str, int, float)):
        raise make_value_error("type", "must be text, a number, or true or false")
    return value


def _check_input(text: str) -> str:
    if not text.strip() or any(ord(character) < 32 for character in text):
        raise make_value_error("input", "must be SINK.TABLE, the name of an event log's sink, or event_store")
    return text


TableName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$"), AfterValidator(str.lower)]
"""What the SQL calls a table; upper and lower case are the same."""


class ProjectionSettings(Strict):
    """A table that a query computes from others."""

    sql: ConfigPath
    """The file with the query: one SELECT, as Spark SQL writes it."""
    inputs: dict[TableName, Annotated[str, AfterValidator(_check_input)]] = Field(min_length=1)
    """What the tables of the query are: SINK.TABLE, the sink of an event log, or event_store."""
    sink: Name
    """The lake, or the sink in PostgreSQL, that the table is in."""
    into: Into | None = None
    """The table's name in the sink, that of the projection by default."""
    keys: list[str] | None = Field(None, min_length=1)
    """The columns that no two rows share."""
    partition_by: str | None = Field(None, min_length=1)
    """A column of the result by which it falls into groups, each computed from the rows of its own: only groups that were
    touched since the last refresh are computed again."""
    refresh: Annotated[str, BeforeValidator(_check_refresh)] = "on_change"
    """When `run` computes it again: on_change, manual, or every so often, such as 5 minutes."""
    parameters: dict[Name, Annotated[str | int | float | bool, BeforeValidator(_check_parameter)]] = Field(
        default_factory=dict
    )
    """Values that the query names as :NAME."""
