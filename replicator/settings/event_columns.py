"""What is said of the columns of an outbox's events, which are fixed, and of the fields of their payloads."""

from __future__ import annotations

from collections.abc import Iterator

from .columns import FIELD
from .findings import Path, Problem, place, quoted
from .nearest import did_you_mean
from .source_parts import EVENT_COLUMNS
from .views import PRIVATE, Rule, TableView

TELLING = ("aggregatetype", "event_offset")
OF_MASKS = frozenset({*PRIVATE, "key", "length", "text"})


def event_column_problems(table: TableView) -> Iterator[Problem]:
    """Everything wrong with `columns` of a table of events, as far as it is about what is private."""
    for name, rule in table.columns.items():
        yield from _private((*table.path, "columns", name), table, name, rule)
    for entry in table.to or ():
        for name in entry.columns:
            if name.startswith(FIELD):
                path = (*entry.path, "columns", name)
                sentence = f"{place(path)} names a field of the payload, which targets have as a whole"
                yield Problem(
                    path, "inapplicable", sentence, "write it in 'columns' of the table: it holds for all that is stored"
                )


def _private(path: Path, table: TableView, name: str, rule: Rule) -> Iterator[Problem]:
    is_field = name.startswith(FIELD)
    if is_field and not rule.keys() <= OF_MASKS:
        sentence = f"{place(path)} names a field of the payload, which can be masked or dropped, and nothing else"
        yield Problem(path, "inapplicable", sentence, "say 'drop', or a mask alone")
    if is_field or not PRIVATE & rule.keys():
        return
    if name not in EVENT_COLUMNS:
        sentence = f"{place(path)} is {table.unknown}"
        hint = did_you_mean(name, EVENT_COLUMNS) or f"a field of the payload is called {quoted(FIELD + name)}"
        yield Problem(path, "unknown_column", sentence, hint)
    if table.names_of(name).intersection(TELLING):
        sentence = f"{place(path)} masks what tells the table of an event, or its place"
        yield Problem(path, "contradiction", sentence, "write it in the 'to' entries")
    elif "payload" in table.names_of(name) and rule.get("mask", "nothing") != "nothing":
        sentence = f"{place(path)} makes something else of the payload than JSON, so that no event could be read"
        yield Problem(path, "contradiction", sentence, f"use 'drop', or mask its fields: {FIELD}NAME")
