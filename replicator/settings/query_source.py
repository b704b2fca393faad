"""What can be wrong with a source that asks a database for what is new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .findings import Problem, place, quoted
from .views import EntryView, View, text

ROWS = "rows"
OF_DECODERS = ("operation_column", "sequence_columns", "operations")


def query_problems(config: View, name: str, source: dict[str, Any]) -> Iterator[Problem]:
    """The problems of the source `name`, with those of the tables that read it; a warning where deletes would be missed."""
    at = ("sources", name)
    if text(source, "format") not in (ROWS, None):
        sentence = f"what a query gives is read as {quoted(ROWS)} alone; {place(at)} says {quoted(source['format'])}"
        yield Problem((*at, "format"), "inapplicable", sentence, f"write `format: {ROWS}`")
    for key in (key for key in OF_DECODERS if key in source):
        sentence = f"key '{key}' in {place(at)} means nothing for a query: its rows have the order in which they are read"
        hint = "remove it; what marks deleted rows goes into `apply_as_deletes` of the table"
        yield Problem((*at, key), "inapplicable", sentence, hint)
    tables = [table for table in config.tables if table.source == name]
    for table in tables:
        if "query" in source and table.declared and source.get("cursor_column") not in table.declared:
            sentence = f"{place((*table.path, 'schema'))} does not declare the 'cursor_column' of {place(at)}"
            yield Problem((*table.path, "schema"), "missing", sentence, "add it with its type")
    if any(_misses_deletes(config, entry) for table in tables for entry in table.to or ()):
        sentence = f"{place(at)} asks for what is new: rows that are deleted are not seen"
        hint = "where that matters read it with `transport: snapshots`, otherwise say `deletes: ignore` in its table"
        yield Problem(at, "no_deletes", sentence, hint, severity="warning")


def _misses_deletes(config: View, entry: EntryView) -> bool:
    """Whether its target has deletes, and nothing says that they do not matter or how they are told."""
    keeps = config.kind(entry.sink) == "event_log" or entry.policy == "append"
    ignores = entry.shape.get("deletes", ((), None))[1] == "ignore"
    return not (keeps or ignores or "apply_as_deletes" in entry.shape)
