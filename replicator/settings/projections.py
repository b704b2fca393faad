"""Settings of projections, tables that a query computes from others, and of the receiver of events about them; with their
checks. `queries` checks the SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from replicator.domain.errors import suggest_name
from replicator.domain.events import EVENT_STORE
from replicator.domain.patterns import is_exact
from replicator.domain.table import get_unqualified_name
from replicator.ports.options import ConfigPath, HttpUrl, Into, Name, Strict, Token, _check_duration, make_value_error

from .adapter_models import SINKS
from .config_view import ConfigView, get_text, to_mapping
from .document import Path, PathProblem, describe_path, quote_name

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


def _check_input_text(text: str) -> str:
    if not text.strip() or any(ord(character) < 32 for character in text):
        raise make_value_error("input", "must be SINK.TABLE, the name of an event log's sink, or event_store")
    return text


TableName = Annotated[Name, AfterValidator(str.lower)]
"""The name of a table in the SQL; upper and lower case are the same."""


class ProjectionSettings(Strict):
    """A gold table: a query computes it from other tables."""

    sql: ConfigPath
    """The file with the query: one SELECT in Spark SQL."""
    inputs: dict[TableName, Annotated[str, AfterValidator(_check_input_text)]] = Field(min_length=1)
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


class LineageSettings(Strict):
    """The receiver of OpenLineage events: the file `path`, one in each line, or `url`."""

    path: ConfigPath | None = None
    """A file of JSON lines."""
    url: HttpUrl | None = None
    """An endpoint that accepts events by POST, such as `http://HOST:PORT/api/v1/lineage`."""
    token: Token | None = None
    """With `url`: the bearer token of the endpoint."""
    namespace: Name | None = None
    """The namespace of the jobs. By default the name of the pipeline."""

    @model_validator(mode="after")
    def _check_location(self) -> LineageSettings:
        if (self.path is None) == (self.url is None):
            raise make_value_error("place", "needs exactly one of 'path' and 'url'")
        if self.url is None and self.token is not None:
            raise make_value_error("inapplicable", "has a 'token', which means nothing without 'url'; remove it")
        return self


Target = tuple[str, str]
"""A sink, and the name of a table in it."""


def check_projections(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong between projections and what they name."""
    targets = list_targets(config.projections)
    lane_targets, open_sinks = set[Target](), set[str]()
    for table, entry in config.list_entries():
        if table.match and is_exact(table.match):
            lane_targets.add((entry.sink or "", entry.into or get_unqualified_name(table.match)))
        elif table.match:
            open_sinks.add(entry.sink or "")  # It may have tables that only the source knows.
    for name, projection in config.projections.items():
        at: Path = ("projections", name)
        yield from _check_output(config, at, projection, targets, lane_targets)
        for label, value in to_mapping(projection.get("inputs")).items():
            if isinstance(value, str):
                all_targets = lane_targets.union(targets.values())
                yield from _check_input(config, (*at, "inputs", label), value, all_targets, open_sinks, own=targets[name])
    inputs = {
        name: {k: v for k, v in to_mapping(projection.get("inputs")).items() if isinstance(v, str)}
        for name, projection in config.projections.items()
    }
    ordered = sort_projections(inputs, targets)
    for name, tables in inputs.items():
        if name not in ordered and ".".join(targets[name]) not in tables.values():
            sentence = f"{describe_path(('projections', name))} reads tables that are computed from its own"
            yield PathProblem(("projections", name), "circle", sentence, "take one of them out of the circle")


def list_targets(projections: Mapping[str, Any]) -> dict[str, Target]:
    """By projection its table."""
    return {name: (get_text(one, "sink") or "", get_text(one, "into") or name) for name, one in projections.items()}


def sort_projections(inputs: Mapping[str, Mapping[str, str]], targets: Mapping[str, Target]) -> list[str]:
    """The projections, each after those whose tables it reads; those that read each other in a circle are left out.
    `inputs`: by projection what its tables are."""
    writers = {".".join(target): name for name, target in targets.items()}
    waits = {name: {writers[value] for value in tables.values() if value in writers} for name, tables in inputs.items()}
    order: list[str] = []
    while ready := [name for name, others in waits.items() if name not in order and others <= {*order}]:
        order += ready
    return order


def _check_output(
    config: ConfigView, at: Path, projection: dict[str, Any], targets: Mapping[str, Target], lane_targets: set[Target]
) -> Iterator[PathProblem]:
    """The sink of a projection, and its table there."""
    name, sinks = get_text(projection, "sink"), config.sinks
    if name is not None and sinks is not None:
        if name not in sinks:
            hint = suggest_name(name, sinks) or f"known: {', '.join(sinks) or 'none'}"
            sentence = f"unknown sink {quote_name(name)} in {describe_path(at)}"
            yield PathProblem((*at, "sink"), "unknown_sink", sentence, hint)
        elif not config.get_sink_model(name).holds_projections:
            kinds = (kind for kind, model in SINKS.items() if model.holds_projections)
            sentence = (
                f"{describe_path((*at, 'sink'))}: {quote_name(name)} is of kind {config.get_kind(name)}, "
                f"which does not support projections yet"
            )
            yield PathProblem((*at, "sink"), "not_yet_supported", sentence, f"name a sink of kind {' or '.join(kinds)}")
    mine = targets[str(at[1])]
    into = ".".join(mine)
    if mine in lane_targets:
        yield PathProblem(
            at, "same_target", f"{describe_path(at)}: a lane writes {quote_name(into)}", "give the projection another 'into'"
        )
    earlier = [*targets][: [*targets].index(str(at[1]))]
    for other in earlier:
        if targets[other] == mine:
            sentence = f"{describe_path(at)}: projection {quote_name(other)} has the table {quote_name(into)}"
            yield PathProblem(at, "same_target", sentence, "give one of them another 'into'")


def _check_input(
    config: ConfigView, at: Path, value: str, known_targets: set[Target], open_sinks: set[str], *, own: Target
) -> Iterator[PathProblem]:
    sink, dot, table = value.partition(".")
    if value == EVENT_STORE:
        if not config.event_store:
            sentence = f"{describe_path(at)}: the store of events is not there"
            yield PathProblem(at, "unknown_table", sentence, "say event_store: {path: ...}")
    elif config.sinks is not None and sink not in config.sinks:
        hint = suggest_name(sink, config.sinks) or f"known: {', '.join(config.sinks) or 'none'}"
        yield PathProblem(at, "unknown_sink", f"{describe_path(at)} names the unknown sink {quote_name(sink)}", hint)
    elif config.sinks is not None and config.get_kind(sink) in SINKS and bool(dot) == config.is_event_log(sink):
        step = "write SINK.TABLE" if not dot else "write the sink's name alone: an event log is one table"
        yield PathProblem(at, "input", f"{describe_path(at)}: {quote_name(value)} names no table", step)
    elif dot and sink not in open_sinks and (sink, table) not in known_targets:
        near = suggest_name(table, [name for of, name in known_targets if of == sink])
        sentence = f"{describe_path(at)}: no lane and no projection writes {quote_name(value)}"
        yield PathProblem(at, "unknown_table", sentence, near or "name the target of a lane (its 'into') or of a projection")
    elif dot and (sink, table) == own:
        yield PathProblem(at, "circle", f"{describe_path(at)}: a projection cannot read its own table", "name another table")
