"""Checks rules for the columns of an outbox's events, which are fixed, and for the fields of their payloads."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.domain.suggestions import suggest_name

from .columns import FIELD
from .config_view import PRIVATE, Rule, TableView
from .findings import Path, PathProblem, describe_path, quote_name
from .source_models import EVENT_COLUMNS

ROUTING_COLUMNS = ("aggregatetype", "event_offset")
MASK_KEYS = frozenset({*PRIVATE, "key", "length", "text"})


def check_event_columns(table: TableView) -> Iterator[PathProblem]:
    """Everything wrong with `columns` of a table of events, as far as it is about what is private."""
    for name, rule in table.columns.items():
        yield from _check_private((*table.path, "columns", name), table, name, rule)
    for entry in table.to or ():
        for name in entry.columns:
            if name.startswith(FIELD):
                path = (*entry.path, "columns", name)
                sentence = f"{describe_path(path)} names a field of the payload, which targets have as a whole"
                yield PathProblem(
                    path, "inapplicable", sentence, "write it in 'columns' of the table: it holds for all that is stored"
                )


def _check_private(path: Path, table: TableView, name: str, rule: Rule) -> Iterator[PathProblem]:
    is_field = name.startswith(FIELD)
    if is_field and not rule.keys() <= MASK_KEYS:
        sentence = f"{describe_path(path)} names a field of the payload, which can be masked or dropped, and nothing else"
        yield PathProblem(path, "inapplicable", sentence, "say 'drop', or a mask alone")
    if is_field or not PRIVATE & rule.keys():
        return
    if name not in EVENT_COLUMNS:
        sentence = f"{describe_path(path)} is {table.unknown}"
        hint = suggest_name(name, EVENT_COLUMNS) or f"a field of the payload is called {quote_name(FIELD + name)}"
        yield PathProblem(path, "unknown_column", sentence, hint)
    if table.list_names(name).intersection(ROUTING_COLUMNS):
        sentence = f"{describe_path(path)} masks a column that decides the table or the order of an event"
        yield PathProblem(path, "contradiction", sentence, "write it in the 'to' entries")
    elif "payload" in table.list_names(name) and rule.get("mask", "nothing") != "nothing":
        sentence = f"{describe_path(path)} makes something else of the payload than JSON, so that no event could be read"
        yield PathProblem(path, "contradiction", sentence, f"use 'drop', or mask its fields: {FIELD}NAME")
