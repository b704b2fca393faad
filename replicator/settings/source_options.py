"""Keys of sources that mean nothing with their format, or that lack what they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicator.domain.topics import TopicFilter

from .findings import Path, Problem, place, quoted
from .sources import FORMATS
from .views import View, mapping, text

ROWS, DMS, DEBEZIUM = "rows", "dms_csv", "debezium_json"
SNAPSHOTS = "snapshots"
OF_FORMATS = {
    "operation_column": (ROWS, DMS),
    "operations": (ROWS, DMS),
    "sequence_columns": (ROWS,),
    "csv": (DMS,),
    "transactions": (DEBEZIUM,),
}
"""Keys of any source, and the formats with which they mean something."""
OF_TABLE_ROWS = ("changes", "start_from", "table")
"""Keys of a Delta table that is read as rows."""
OF_DATABASE = ("table", "query", "every")
"""Keys of snapshots that a database is asked for."""
SAID_BY_FEED = ("operation_column", "sequence_columns", "operations")


def source_option_problems(config: View) -> Iterator[Problem]:
    """Everything wrong with the keys of sources that can be told from the config alone."""
    for name, source in (config.sources or {}).items():
        if text(source, "format") in FORMATS:
            yield from _of_other_formats(name, source)
        if text(source, "transport") == "delta":
            yield from _of_delta(config, name, source)
        if "transactions" in source:
            yield from _of_transactions(config, name, source)
        if text(source, "transport") == "files" and text(source, "format") not in (DMS, None):
            sentence = f"files are read as {quoted(DMS)} alone; {place(('sources', name))} says {quoted(source['format'])}"
            yield Problem(("sources", name, "format"), "inapplicable", sentence, "recorded topics are `transport: archive`")
        if text(source, "transport") == SNAPSHOTS:
            yield from _of_snapshots(name, source)
    yield from _of_tables(config)


def _of_snapshots(name: str, source: dict[str, Any]) -> Iterator[Problem]:
    at = ("sources", name)
    if text(source, "format") not in (ROWS, None):
        sentence = f"snapshots are read as {quoted(ROWS)} alone; {place(at)} says {quoted(source['format'])}"
        yield Problem((*at, "format"), "inapplicable", sentence, f"write `format: {ROWS}`")
    for key in (key for key in SAID_BY_FEED if key in source):
        sentence = f"key '{key}' in {place(at)} means nothing for snapshots, which are compared with each other"
        yield Problem((*at, key), "inapplicable", sentence, "remove it")
    if "dsn" not in source:
        if "path" not in source:
            hint = "name the folder of the snapshots; or 'dsn' and 'table' of a database"
            yield Problem((*at, "path"), "missing", f"missing key 'path' in {place(at)}", hint)
        for key in (key for key in OF_DATABASE if key in source):
            sentence = f"key '{key}' in {place(at)} means nothing without 'dsn'"
            yield Problem((*at, key), "inapplicable", sentence, "remove it, or write the database as 'dsn'")
    elif "path" in source or "files" in source:
        key = "path" if "path" in source else "files"
        yield Problem((*at, key), "contradiction", f"{place(at)} has both '{key}' and 'dsn'", "keep one")
    elif "table" not in source:
        hint = "write 'table: SCHEMA.TABLE', or with a query any name"
        yield Problem((*at, "table"), "missing", f"missing key 'table' in {place(at)}", hint)
    yield from _of_csv(source, at)


def _of_csv(source: dict[str, Any], at: Path) -> Iterator[Problem]:
    if text(source, "files") != "csv":
        return
    said = mapping(source.get("csv"))
    if "header" not in said:
        hint = "write 'csv: {header: true}', or false where columns stand in the order of 'schema'"
        yield Problem(at, "missing", f"{place(at)}: nothing says whether its files have a header", hint)
    for key in (key for key in ("unsent_value", "inserts_only") if key in said):
        sentence = f"key '{key}' in {place((*at, 'csv'))} means nothing for snapshots"
        yield Problem((*at, "csv", key), "inapplicable", sentence, "remove it")


def _of_other_formats(name: str, source: dict[str, Any]) -> Iterator[Problem]:
    """Keys of one format where records are of another."""
    of_snapshots = ("csv",) if text(source, "files") == "csv" and text(source, "transport") == SNAPSHOTS else ()
    keys = [key for key, formats in OF_FORMATS.items() if source["format"] not in formats and key not in of_snapshots]
    if text(source, "transport") == "delta":
        keys += ["topics"] if source["format"] == ROWS else OF_TABLE_ROWS
    for key in keys:
        if key in source:
            sentence = f"key '{key}' in {place(('sources', name))} means nothing with format {quoted(source['format'])}"
            yield Problem(("sources", name, key), "inapplicable", sentence, "remove it")


def _of_delta(config: View, name: str, source: dict[str, Any]) -> Iterator[Problem]:
    at = ("sources", name)
    if text(source, "format") != ROWS or "table" not in source:
        if "path" not in source:
            yield Problem((*at, "path"), "missing", f"missing key 'path' in {place(at)}", "name the folder of the table")
    elif "path" in source:
        yield Problem((*at, "table"), "contradiction", f"{place(at)} has both 'path' and 'table'", "keep one")
    elif config.engine == "local":
        sentence = f"key 'table' in {place(at)} needs the engine spark: the local one knows no catalog"
        yield Problem((*at, "table"), "engine", sentence, "write the folder of the table as 'path'")
    if source.get("changes") == "feed":
        for key in (key for key in SAID_BY_FEED if key in source):
            sentence = f"{place(at)} has both 'changes: feed' and '{key}': the feed says that itself"
            yield Problem((*at, key), "contradiction", sentence, "keep one")


def _of_transactions(config: View, name: str, source: dict[str, Any]) -> Iterator[Problem]:
    """Transactions are told in a topic that the source has to read, and are held together by the local engine."""
    at = ("sources", name, "transactions")
    if config.engine not in ("local", None):
        sentence = f"{place(at)} needs the engine local: on {quoted(config.engine)} lanes are not held together"
        yield Problem(at, "engine", sentence, "remove it, or write `engine: local`")
    topic, topics = (source["transactions"] or {}).get("topic"), source.get("topics")
    patterns = [p for p in topics if isinstance(p, str)] if isinstance(topics, list) else []
    if isinstance(topic, str) and patterns and not TopicFilter(patterns)(topic):
        sentence = f"source {name} does not read topic {quoted(topic)}, which tells where its transactions end"
        yield Problem((*at, "topic"), "contradiction", sentence, f"add it to 'topics' in {place(('sources', name))}")


def _of_tables(config: View) -> Iterator[Problem]:
    """What cannot be asked of tables whose records are rows."""
    for table, entry in config.entries():
        source = (config.sources or {}).get(table.source or "", {})
        form = text(source, "format")
        if form not in (ROWS, DMS) or config.kind(entry.sink) == "event_log":
            continue
        said = dict(entry.of_table)
        if form == DMS and "schema" not in table.said and not _has_header(source):
            sentence = f"{place(table.path)}: its files have no header, so nothing says what its columns are"
            hint = "write 'schema: {COLUMN: TYPE, ...}' in it, in their order, or 'csv: {header: true}' in the source"
            yield Problem(table.path, "missing", sentence, hint)
        of_text = text(source, "transport") == SNAPSHOTS and text(source, "files") in ("csv", "jsonl")
        if of_text and "schema" not in table.said:
            sentence = f"{place(table.path)}: its snapshots are text, so nothing says what its columns are"
            yield Problem(table.path, "missing", sentence, "write 'schema: {COLUMN: TYPE, ...}' in it")
        if text(source, "transport") in ("delta", SNAPSHOTS) and "schema" in table.said and not of_text:
            what = "a Delta table" if text(source, "transport") == "delta" else "snapshots"
            sentence = f"{place(table.path)}: rows of {what} have the types of its columns"
            yield Problem((*table.path, "schema"), "inapplicable", sentence, "remove it")
        if (entry.policy != "append" or text(source, "transport") == SNAPSHOTS) and said["keys"] == "None":
            sentence = f"{place(table.path)}: its records are rows, which do not say what their key is"
            yield Problem(table.path, "missing", sentence, "write 'keys: [...]' in it")
        if said["tombstones"] == "delete":
            at = (*next((p for p, keys in ((entry.path, entry.said), (table.path, table.said)) if "tombstones" in keys),
                        ("defaults",)), "tombstones")  # fmt: skip
            sentence = f"{place(at)}: records without a value delete nothing with format {quoted(form)}"
            yield Problem(at, "inapplicable", sentence, "remove it")


def _has_header(source: dict[str, Any]) -> bool:
    csv = source.get("csv")
    return isinstance(csv, dict) and csv.get("header") is True
