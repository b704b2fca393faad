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
"""The name of a table in the SQL; upper and lower case are the same."""


class ProjectionSettings(Strict):
    """A gold table: a query computes it from other tables."""

    sql: ConfigPath
    """The file with the query: one SELECT in Spark SQL."""
    inputs: dict[TableName, Annotated[str, AfterValidator(_check_input)]] = Field(min_length=1)
    """The tables of the query, by the names that it uses: SINK.TABLE, the sink of an event log, or `event_store`."""
    sink: Name
    """The sink of the table: a lake or PostgreSQL."""
    into: Into | None = None
    """The name of the table. By default the name of the projection."""
    keys: list[str] | None = Field(None, min_length=1)
    """The columns that identify a row of the result."""
    partition_by: str | None = Field(None, min_length=1)
    """A column that divides the result into groups, so that each group depends only on its own rows. A refresh then
    computes only the affected groups."""
    refresh: Annotated[str, BeforeValidator(_check_refresh)] = "on_change"
    """When `replicator run` refreshes the table: `on_change`, `manual`, or an interval such as `5 minutes`."""
    parameters: dict[Name, Annotated[str | int | float | bool, BeforeValidator(_check_parameter)]] = Field(
        default_factory=dict
    )
    """Values for `:NAME` in the query."""
