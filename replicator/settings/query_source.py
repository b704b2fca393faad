"""Checks sources that query a database for new rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicator.domain.policy.policy_names import CHANGE_POLICIES

from .config_view import ConfigView, EntryView, get_text
from .findings import PathProblem, describe_path, quote_name
from .formats import ROWS, get_format

DECODER_KEYS = ("operation_column", "sequence_columns", "operations")


def check_query_source(config: ConfigView, name: str, source: dict[str, Any]) -> Iterator[PathProblem]:
    """The problems of the source `name`, with those of the tables that read it; a warning where deletes would be missed."""
    at = ("sources", name)
    form = get_text(source, "format")
    if form is not None and "query" not in get_format(form).transports:
        sentence = (
            f"the result of a query can only have the format {quote_name(ROWS)}; {describe_path(at)} says "
            f"{quote_name(source['format'])}"
        )
        yield PathProblem((*at, "format"), "inapplicable", sentence, f"write `format: {ROWS}`")
    for key in (key for key in DECODER_KEYS if key in source):
        sentence = (
            f"key '{key}' in {describe_path(at)} means nothing for a query: its rows have the order in which they are read"
        )
        hint = "remove it; write the condition for deleted rows under `apply_as_deletes` of the table"
        yield PathProblem((*at, key), "inapplicable", sentence, hint)
    tables = [table for table in config.tables if table.source == name]
    for table in tables:
        if "query" in source and table.declared and source.get("cursor_column") not in table.declared:
            sentence = (
                f"{describe_path((*table.path, 'schema'))} does not declare the 'cursor_column' of {describe_path(at)}"
            )
            yield PathProblem((*table.path, "schema"), "missing", sentence, "add it with its type")
    if any(_is_missing_deletes(config, entry) for table in tables for entry in table.to or ()):
        sentence = f"{describe_path(at)} only reads new rows: it does not see deleted rows"
        hint = "if rows are deleted there, use `transport: snapshots`; otherwise write `deletes: ignore` in its table"
        yield PathProblem(at, "no_deletes", sentence, hint, severity="warning")


def _is_missing_deletes(config: ConfigView, entry: EntryView) -> bool:
    """True if its target has deletes, but the config has neither `deletes: ignore` nor a way to recognise them."""
    keeps = config.get_kind(entry.sink) == "event_log" or entry.policy in CHANGE_POLICIES
    ignores = entry.row_transforms.get("deletes", ((), None))[1] == "ignore"
    return not (keeps or ignores or "apply_as_deletes" in entry.row_transforms)
