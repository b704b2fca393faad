"""Keys of sources that mean nothing with their format, or that lack what they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicator.domain.patterns import TopicFilter
from replicator.domain.policy import CHANGE_POLICIES, VERSION_POLICIES
from replicator.ports.adapter_options import ROWS

from .adapter_models import (
    DEBEZIUM_JSON,
    DMS_CSV,
    DMS_PARQUET,
    FORMAT_KEYS,
    FORMATS,
    OUTBOX,
    get_format,
    list_format_keys,
    list_formats_of,
)
from .config_view import ConfigView, get_text, to_mapping
from .document import Path, PathProblem, describe_path, make_idle_key, quote_name

SNAPSHOTS, QUERY, FILES = "snapshots", "query", "files"
LOG_KEYS = ("topics", "since", "until")
"""Keys of an event log's source that mean nothing of rows."""
TABLE_ROW_KEYS = ("changes", "start_from", "table")
"""Keys of a Delta table that is read as rows."""
DATABASE_KEYS = ("table", "query", "every")
"""Keys of snapshots of a database."""
TYPED_TRANSPORTS = {"delta": "a Delta table", SNAPSHOTS: "snapshots", QUERY: "a table of a database"}
"""Transports whose rows have types of their own, and what they read."""
NEW_ROW_TRANSPORTS = (FILES, "kafka", "archive")
"""Transports whose rows are inserts if no column has their operation."""
KEYED_TRANSPORTS = (SNAPSHOTS, QUERY)
"""Transports that need the key for every policy."""
UNITS = {
    "timestamp": "timestamp[ms], timestamp[us] or timestamp[ns]",
    "time": "time32[ms], time64[us] or time64[ns]",
}
"""Types without a unit, and those that say one."""
FEED_KEYS = ("operation_column", "sequence_columns", "operations")


def check_source_options(config: ConfigView) -> Iterator[PathProblem]:
    """All problems of the keys of sources that the config alone shows."""
    for name, source in (config.sources or {}).items():
        at: Path = ("sources", name)
        form, transport = get_text(source, "format"), get_text(source, "transport")
        if form is not None and form in FORMATS:
            yield from _check_format_keys(at, form, source)
        if transport == "delta":
            yield from _check_delta(config, at, source)
        if "transactions" in source:
            yield from _check_transactions(config, at, source)
        if transport == FILES:
            yield from _check_files(at, form, source)
        if transport == "archive":
            yield from _check_archive(at, source)
        are_rows = form == ROWS and transport in NEW_ROW_TRANSPORTS
        if are_rows and "operations" in source and "operation_column" not in source:
            why = " without 'operation_column': all rows are new"
            yield make_idle_key(at, "operations", why, "name the column, or remove it")
        if transport == SNAPSHOTS:
            yield from _check_snapshots(at, source)
        if transport == QUERY:
            yield from check_query_source(config, at, source)
    yield from _check_tables(config)
    yield from _check_units(config)
    yield from _check_events(config)
    yield from _check_compacted(config)


def _check_files(at: Path, form: str | None, source: dict[str, Any]) -> Iterator[PathProblem]:
    if form is not None and FILES not in get_format(form).transports:
        *others, last = map(quote_name, list_formats_of(FILES))
        formats = f"{', '.join(others)} or {last}"
        sentence = f"files are read as {formats} alone; {describe_path(at)} says {quote_name(form)}"
        yield PathProblem((*at, "format"), "inapplicable", sentence, "recorded topics are `transport: archive`")
    if form in (DMS_CSV, DMS_PARQUET) and "files" in source:
        yield make_idle_key(at, "files", f": the format {quote_name(form)} already names the kind of files")
    if form != ROWS:
        return
    if "files" not in source:
        hint = "write 'files: csv', 'files: jsonl' or 'files: parquet'"
        yield PathProblem(at, "missing", f"missing key 'files' in {describe_path(at)}, whose files are of rows", hint)
    csv = to_mapping(source.get("csv"))
    if get_text(source, "files") == "csv" and csv.get("header") is not True:
        hint = "write 'csv: {header: true}', and let every file begin with the names of its columns"
        yield PathProblem(at, "missing", f"{describe_path(at)}: columns of rows in CSV are named by a header row", hint)
    if "inserts_only" in csv:
        yield make_idle_key((*at, "csv"), "inserts_only", " for rows", "leave out 'operation_column' instead")


def _check_archive(at: Path, source: dict[str, Any]) -> Iterator[PathProblem]:
    files = get_text(source, "files")
    if files in ("connect", "lines") and not get_format(get_text(source, "format")).in_connect_files:
        sentence = (
            f"{describe_path(at)}: files of sinks hold JSON, lines of text, Avro or Parquet, and no records of "
            f"{quote_name(source['format'])}"
        )
        hint = "use `format: debezium_json` for Debezium's events there, also if the topic had another format"
        yield PathProblem((*at, "format"), "inapplicable", sentence, hint)
    if files == "lines" and "topic" not in source:
        sentence = f"missing key 'topic' in {describe_path(at)}: lines of a file do not name their topic"
        yield PathProblem(at, "missing", sentence, "for example topic: cdc.public.orders")
    if files == "lines" and (get_text(source, "path") or "").startswith(("s3://", "s3a://")):
        sentence = f"{describe_path(at)}: with 'files: lines' 'path' names the file that the connector appends to"
        yield PathProblem((*at, "path"), "inapplicable", sentence, "name a file on this machine; objects do not grow")
    if "topic" in source and files != "lines":
        yield make_idle_key(at, "topic", " without 'files: lines': files name their topics")
    if "settle" in source and files != "connect":
        yield make_idle_key(at, "settle", " for recorded topics, which are read while they grow")


def _check_only_rows(at: Path, source: dict[str, Any], subject: str) -> Iterator[PathProblem]:
    form, transport = get_text(source, "format"), source["transport"]
    if form is not None and transport not in get_format(form).transports:
        sentence = f"{subject} can only have the format {quote_name(ROWS)}; {describe_path(at)} says {quote_name(form)}"
        yield PathProblem((*at, "format"), "inapplicable", sentence, f"write `format: {ROWS}`")


def _check_snapshots(at: Path, source: dict[str, Any]) -> Iterator[PathProblem]:
    yield from _check_only_rows(at, source, "snapshots")
    for key in (key for key in FEED_KEYS if key in source):
        yield make_idle_key(at, key, " for snapshots, which are compared with each other")
    if "dsn" not in source:
        if "path" not in source:
            hint = "name the folder of the snapshots; or 'dsn' and 'table' of a database"
            yield PathProblem((*at, "path"), "missing", f"missing key 'path' in {describe_path(at)}", hint)
        for key in (key for key in DATABASE_KEYS if key in source):
            yield make_idle_key(at, key, " without 'dsn'", "remove it, or write the database as 'dsn'")
    elif "path" in source or "files" in source:
        key = "path" if "path" in source else "files"
        yield PathProblem((*at, key), "contradiction", f"{describe_path(at)} has both '{key}' and 'dsn'", "keep one")
    elif "table" not in source:
        hint = "write 'table: SCHEMA.TABLE', or with a query any name"
        yield PathProblem((*at, "table"), "missing", f"missing key 'table' in {describe_path(at)}", hint)
    if get_text(source, "files") != "csv":
        return
    csv = to_mapping(source.get("csv"))
    if "header" not in csv:
        hint = "write 'csv: {header: true}', or false where columns stand in the order of 'schema'"
        yield PathProblem(at, "missing", f"{describe_path(at)}: it is unknown if its files have a header", hint)
    for key in (key for key in ("unsent_value", "inserts_only") if key in csv):
        yield make_idle_key((*at, "csv"), key, " for snapshots")


def _check_format_keys(at: Path, form: str, source: dict[str, Any]) -> Iterator[PathProblem]:
    """Problems with keys of another format than that of the source, and with keys that the format needs."""
    of_csv = {"csv"} if get_text(source, "files") == "csv" and get_text(source, "transport") in (SNAPSHOTS, FILES) else set()
    others = set(FORMAT_KEYS - list_format_keys(form) - of_csv)
    if get_text(source, "transport") == "delta":
        others.update(LOG_KEYS if form == ROWS else TABLE_ROW_KEYS)
    for key in (key for key in source if key in others):
        yield make_idle_key(at, key, f" with format {quote_name(form)}")
    if "registry" in list_format_keys(form) and "registry" not in source:
        sentence = f"missing key 'registry' in {describe_path(at)}: records name their schemas by ids of a schema registry"
        yield PathProblem((*at, "registry"), "missing", sentence, "for example registry: {url: http://registry:8081}")


def _check_delta(config: ConfigView, at: Path, source: dict[str, Any]) -> Iterator[PathProblem]:
    if get_text(source, "format") != ROWS or "table" not in source:
        if "path" not in source:
            yield PathProblem(
                (*at, "path"), "missing", f"missing key 'path' in {describe_path(at)}", "name the folder of the table"
            )
    elif "path" in source:
        yield PathProblem((*at, "table"), "contradiction", f"{describe_path(at)} has both 'path' and 'table'", "keep one")
    elif config.engine == "local":
        sentence = f"key 'table' in {describe_path(at)} needs the engine spark: the local one knows no catalog"
        yield PathProblem((*at, "table"), "engine", sentence, "write the folder of the table as 'path'")
    if source.get("changes") == "feed":
        for key in (key for key in FEED_KEYS if key in source):
            sentence = f"{describe_path(at)} has both 'changes: feed' and '{key}': the feed says that itself"
            yield PathProblem((*at, key), "contradiction", sentence, "keep one")


def _check_transactions(config: ConfigView, source_at: Path, source: dict[str, Any]) -> Iterator[PathProblem]:
    """The source must read the topic of its transactions. Only the local engine holds anything back."""
    at, transactions = (*source_at, "transactions"), to_mapping(source["transactions"])
    if config.engine != "local" and "max_transaction_bytes" in transactions:
        sentence = f"{describe_path(at)}: on the engine {quote_name(config.engine)} nothing of a transaction is held back"
        yield PathProblem((*at, "max_transaction_bytes"), "engine", sentence, "remove it, or write `engine: local`")
    topic, topics = transactions.get("topic"), source.get("topics")
    patterns = [p for p in topics if isinstance(p, str)] if isinstance(topics, list) else []
    if isinstance(topic, str) and patterns and not TopicFilter(patterns)(topic):
        sentence = f"source {source_at[1]} does not read topic {quote_name(topic)}, which has the ends of its transactions"
        yield PathProblem((*at, "topic"), "contradiction", sentence, f"add it to 'topics' in {describe_path(source_at)}")
    if source.get("flattened") is True:
        sentence = (
            f"{describe_path(source_at)} has both 'transactions' and 'flattened': flattened "
            f"rows do not have enough information about their transactions"
        )
        yield PathProblem(at, "contradiction", sentence, "keep one")


def _check_tables(config: ConfigView) -> Iterator[PathProblem]:
    """Find keys that tables with rows as records cannot have."""
    for table, entry in (pair for pair in config.list_entries() if not config.is_event_log(pair[1].sink)):
        source = config.get_source(table)
        form, transport, files = (get_text(source, key) for key in ("format", "transport", "files"))
        tombstones_at, tombstones = entry.find("tombstones")
        if source.get("flattened") is True and tombstones is None:
            # Unless the connector says otherwise, deletes of flattened rows come as records without a value only.
            place = describe_path(table.path)
            sentence = f"{place}: it is unknown if records without a value delete rows, as flattened deletes may do"
            hint = "write 'tombstones: delete', or 'tombstones: ignore' with delete.tombstone.handling.mode=rewrite"
            yield PathProblem(table.path, "missing", sentence, hint)
        if not get_format(form).is_rows:
            continue
        if form == DMS_CSV and "schema" not in table.raw and to_mapping(source.get("csv")).get("header") is not True:
            sentence = f"{describe_path(table.path)}: its files have no header, so its columns are unknown"
            hint = "write 'schema: {COLUMN: TYPE, ...}' in it, in their order, or 'csv: {header: true}' in the source"
            yield PathProblem(table.path, "missing", sentence, hint)
        declares = transport == QUERY and "query" in source
        if declares and "schema" not in table.raw:
            sentence = f"{describe_path(table.path)}: the columns of its query are unknown"
            yield PathProblem(table.path, "missing", sentence, "write 'schema: {COLUMN: TYPE, ...}' in it")
        of_text = transport in (SNAPSHOTS, FILES) and files in ("csv", "jsonl")
        if of_text and "schema" not in table.raw:
            noun = "files" if transport == FILES else "snapshots"
            sentence = f"{describe_path(table.path)}: its {noun} are text, so its columns are unknown"
            yield PathProblem(table.path, "missing", sentence, "write 'schema: {COLUMN: TYPE, ...}' in it")
        parquet = transport == FILES and files == "parquet"
        typed = transport in TYPED_TRANSPORTS or form == DMS_PARQUET or parquet
        if typed and "schema" in table.raw and not (of_text or declares):
            noun = TYPED_TRANSPORTS.get(transport or "", "Parquet files")
            sentence = f"{describe_path(table.path)}: rows of {noun} have the types of its columns"
            yield PathProblem((*table.path, "schema"), "inapplicable", sentence, "remove it")
        needs_key = entry.policy not in CHANGE_POLICIES or transport in KEYED_TRANSPORTS
        if needs_key and entry.get_value("keys") is None:
            sentence = f"{describe_path(table.path)}: its records are rows, which do not say what their key is"
            yield PathProblem(table.path, "missing", sentence, "write 'keys: [...]' in it")
        # Records without a value can delete rows that have neither operations nor an order but their offsets.
        columns = {"operation_column", "sequence_columns"} & source.keys()
        can_delete = form == ROWS and transport in ("kafka", "archive") and not columns
        if tombstones == "delete" and not can_delete:
            sentence = (
                f"{describe_path(tombstones_at)}: records without a value delete nothing with format {quote_name(form)}"
            )
            yield PathProblem(tombstones_at, "inapplicable", sentence, "remove it")


def _check_events(config: ConfigView) -> Iterator[PathProblem]:
    """Find keys that tables of an outbox's events cannot have: their columns and their key are fixed."""
    why, step = f" with format {quote_name(OUTBOX)}: columns are fixed", "remove it: the key of an event is its id"
    for table in (table for table in config.tables if table.of_events):
        for level in table.levels:
            for key in (key for key in ("schema", "keys", "tombstones", "out_of_range") if key in level.raw):
                yield make_idle_key(level.path, key, why, step)


def _check_units(config: ConfigView) -> Iterator[PathProblem]:
    """Debezium sends times without a zone as numbers, whose unit depends on the column. Documents, which have an `_id`, have
    dates of their own."""
    for table in config.tables:
        if get_text(config.get_source(table), "format") != DEBEZIUM_JSON or "_id" in table.types:
            continue
        for name, kind in table.types.items():
            type_name = UNITS.get(str(kind).strip().lower())
            if type_name:
                at = (*table.path, "schema", name)
                sentence = (
                    f"{describe_path(at)}: {quote_name(kind)} does not say the unit in which the connector sends numbers"
                )
                yield PathProblem(
                    at, "missing", sentence, f"write {type_name}: use the unit that is sent (docs/reference/types.md)"
                )


def _check_compacted(config: ConfigView) -> Iterator[PathProblem]:
    """Check `tombstones`. In a compacted topic, messages without a value are deletes, and the topic has no full history.
    Only the broker knows if it is compacted. Flattened rows may have no other deletes."""
    for table, entry in config.list_entries():
        source = config.get_source(table)
        of_events = get_format(get_text(source, "format")).has_compacted_topics and source.get("flattened") is not True
        every = entry.policy in VERSION_POLICIES | CHANGE_POLICIES or config.is_event_log(entry.sink)
        if of_events and every and entry.get_value("tombstones") == "delete":
            target = "the event log" if config.is_event_log(entry.sink) else f"policy {quote_name(entry.policy)}"
            sentence = (
                f"{describe_path(entry.path)}: {target} keeps every change, and a topic that is compacted, as "
                f"`tombstones: delete` "
                "says, keeps the last one of a key"
            )
            hint = "let it read a topic with cleanup.policy=delete; `replicator doctor` reads this setting from the broker"
            yield PathProblem(entry.path, "no_history", sentence, hint, severity="warning")


# Checks sources that query a database for new rows.


def check_query_source(config: ConfigView, at: Path, source: dict[str, Any]) -> Iterator[PathProblem]:
    """The problems of the source at `at`, with those of the tables that read it; a warning where deletes would be missed."""
    yield from _check_only_rows(at, source, "the result of a query")
    for key in (key for key in FEED_KEYS if key in source):
        why = " for a query: its rows have the order in which they are read"
        yield make_idle_key(
            at, key, why, "remove it; write the condition for deleted rows under `apply_as_deletes` of the table"
        )
    tables = [table for table in config.tables if table.source == at[1]]
    for table in tables:
        if "query" in source and table.types and source.get("cursor_column") not in table.types:
            sentence = (
                f"{describe_path((*table.path, 'schema'))} does not declare the 'cursor_column' of {describe_path(at)}"
            )
            yield PathProblem((*table.path, "schema"), "missing", sentence, "add it with its type")
    # The config has neither `deletes: ignore` for the target nor a way to recognise deleted rows.
    if any(
        "apply_as_deletes" not in entry.nearest and entry.get_value("deletes") != "ignore"
        for table in tables
        for entry in table.to or ()
        if not config.is_event_log(entry.sink) and entry.policy not in CHANGE_POLICIES
    ):
        sentence = f"{describe_path(at)} only reads new rows: it does not see deleted rows"
        hint = "if rows are deleted there, use `transport: snapshots`; otherwise write `deletes: ignore` in its table"
        yield PathProblem(at, "no_deletes", sentence, hint, severity="warning")
