"""Keys of sources that mean nothing with their format, or that lack what they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicator.domain.topics import TopicFilter

from .findings import Path, Problem, place, quoted
from .query_source import query_problems
from .source_parts import OUTBOX
from .sources import FORMATS
from .views import View, mapping, text

ROWS, DMS, DMS_PARQUET = "rows", "dms_csv", "dms_parquet"
DEBEZIUM, AVRO = "debezium_json", "debezium_avro"
SNAPSHOTS, QUERY, FILES = "snapshots", "query", "files"
OF_FORMATS = {
    "operation_column": (ROWS, DMS, DMS_PARQUET),
    "operations": (ROWS, DMS, DMS_PARQUET),
    "sequence_columns": (ROWS,),
    "csv": (DMS,),
    "transactions": (DEBEZIUM, AVRO),
    "registry": (AVRO,),
    "outbox": (OUTBOX,),
    "flattened": (DEBEZIUM,),
    "decimals": (DEBEZIUM,),
    "replica_identity": (DEBEZIUM, AVRO),
}
"""Keys of any source, and the formats with which they mean something."""
OF_LOGS = ("topics", "since", "until")
"""Keys of an event log's source that mean nothing of rows."""
OF_TABLE_ROWS = ("changes", "start_from", "table")
"""Keys of a Delta table that is read as rows."""
OF_DATABASE = ("table", "query", "every")
"""Keys of snapshots that a database is asked for."""
OF_KNOWN_TYPES = {"delta": "a Delta table", SNAPSHOTS: "snapshots", QUERY: "a table of a database"}
"""Transports whose rows have types of their own, and what the rows are of."""
NOT_IN_SINKS = (AVRO, "dts_avro", DMS, DMS_PARQUET)
"""Formats whose records no file of a sink holds."""
OF_NEW_ROWS = (FILES, "kafka", "archive")
"""Transports whose rows are new ones where no column says what became of them."""
KEYED = (SNAPSHOTS, QUERY)
"""Transports that need to know the key whatever the policy."""
UNITS = {
    "timestamp": "timestamp[ms], timestamp[us] or timestamp[ns]",
    "time": "time32[ms], time64[us] or time64[ns]",
}
"""Types without a unit, and those that say one."""
SAID_BY_FEED = ("operation_column", "sequence_columns", "operations")


def source_option_problems(config: View) -> Iterator[Problem]:
    """Everything wrong with the keys of sources that can be told from the config alone."""
    for name, source in (config.sources or {}).items():
        if text(source, "format") in FORMATS:
            yield from _of_other_formats(name, source)
        if text(source, "format") == AVRO and "registry" not in source:
            at = ("sources", name)
            sentence = f"missing key 'registry' in {place(at)}: records name their schemas by ids of a schema registry"
            yield Problem((*at, "registry"), "missing", sentence, "for example registry: {url: http://registry:8081}")
        if text(source, "transport") == "delta":
            yield from _of_delta(config, name, source)
        if "transactions" in source:
            yield from _of_transactions(config, name, source)
            if source.get("flattened") is True:
                sentence = (
                    f"{place(('sources', name))} has both 'transactions' and 'flattened': rows do not tell enough of theirs"
                )
                yield Problem(("sources", name, "transactions"), "contradiction", sentence, "keep one")
        if text(source, "transport") in (FILES, "archive"):
            yield from (_of_files if text(source, "transport") == FILES else _of_archive)(name, source)
        yield from _of_new_rows(name, source)
        if text(source, "transport") == SNAPSHOTS:
            yield from _of_snapshots(name, source)
        if text(source, "transport") == QUERY:
            yield from query_problems(config, name, source)
    yield from _of_tables(config)
    yield from _of_units(config)
    yield from _of_events(config)
    yield from _of_compacted(config)


def _of_files(name: str, source: dict[str, Any]) -> Iterator[Problem]:
    at = ("sources", name)
    if text(source, "format") not in (DMS, DMS_PARQUET, ROWS, None):
        known = f"{quoted(DMS)}, {quoted(DMS_PARQUET)} or {quoted(ROWS)}"
        sentence = f"files are read as {known} alone; {place(at)} says {quoted(source['format'])}"
        yield Problem((*at, "format"), "inapplicable", sentence, "recorded topics are `transport: archive`")
    if text(source, "format") in (DMS, DMS_PARQUET) and "files" in source:
        sentence = f"key 'files' in {place(at)} means nothing with format {quoted(source['format'])}, which says it"
        yield Problem((*at, "files"), "inapplicable", sentence, "remove it")
    if text(source, "format") != ROWS:
        return
    if "files" not in source:
        hint = "write 'files: csv', 'files: jsonl' or 'files: parquet'"
        yield Problem(at, "missing", f"missing key 'files' in {place(at)}, whose files are of rows", hint)
    said = mapping(source.get("csv"))
    if text(source, "files") == "csv" and said.get("header") is not True:
        hint = "write 'csv: {header: true}', and let every file begin with the names of its columns"
        yield Problem(at, "missing", f"{place(at)}: columns of rows in CSV are named by a header row", hint)
    for key in (key for key in ("inserts_only",) if key in said):
        sentence = f"key '{key}' in {place((*at, 'csv'))} means nothing for rows"
        yield Problem((*at, "csv", key), "inapplicable", sentence, "leave out 'operation_column' instead")


def _of_archive(name: str, source: dict[str, Any]) -> Iterator[Problem]:
    at, files = ("sources", name), text(source, "files")
    if files in ("connect", "lines") and text(source, "format") in NOT_IN_SINKS:
        sentence = (
            f"{place(at)}: files of sinks hold JSON, lines of text, Avro or Parquet, and no records of "
            f"{quoted(source['format'])}"
        )
        hint = "Debezium's events are `format: debezium_json` there, whatever they were in the topic"
        yield Problem((*at, "format"), "inapplicable", sentence, hint)
    if files == "lines" and "topic" not in source:
        sentence = f"missing key 'topic' in {place(at)}: lines of a file do not say of which topic they are"
        yield Problem(at, "missing", sentence, "for example topic: cdc.public.orders")
    if files == "lines" and (text(source, "path") or "").startswith(("s3://", "s3a://")):
        sentence = f"{place(at)}: with 'files: lines' the path is the file that the connector appends to"
        yield Problem((*at, "path"), "inapplicable", sentence, "name a file on this machine; objects do not grow")
    if "topic" in source and files != "lines":
        sentence = f"key 'topic' in {place(at)} means nothing without 'files: lines': files say of which topics they are"
        yield Problem((*at, "topic"), "inapplicable", sentence, "remove it")
    if "settle" in source and files != "connect":
        sentence = f"key 'settle' in {place(at)} means nothing for recorded topics, which are read while they grow"
        yield Problem((*at, "settle"), "inapplicable", sentence, "remove it")


def _of_new_rows(name: str, source: dict[str, Any]) -> Iterator[Problem]:
    at = ("sources", name)
    are_rows = text(source, "format") == ROWS and text(source, "transport") in OF_NEW_ROWS
    if are_rows and "operations" in source and "operation_column" not in source:
        sentence = f"key 'operations' in {place(at)} means nothing without 'operation_column': all rows are new ones"
        yield Problem((*at, "operations"), "inapplicable", sentence, "name the column, or remove it")


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
    of_csv = ("csv",) if text(source, "files") == "csv" and text(source, "transport") in (SNAPSHOTS, FILES) else ()
    keys = [key for key, formats in OF_FORMATS.items() if source["format"] not in formats and key not in of_csv]
    if text(source, "transport") == "delta":
        keys += OF_LOGS if source["format"] == ROWS else OF_TABLE_ROWS
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
    """Transactions are told in a topic that the source has to read. Only the local engine holds anything back."""
    at = ("sources", name, "transactions")
    if config.engine not in ("local", None) and "max_transaction_bytes" in (source["transactions"] or {}):
        sentence = f"{place(at)}: on the engine {quoted(config.engine)} nothing of a transaction is held back"
        yield Problem((*at, "max_transaction_bytes"), "engine", sentence, "remove it, or write `engine: local`")
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
        if source.get("flattened") is True and config.kind(entry.sink) != "event_log":
            yield from _of_flattened(table.path, dict(entry.of_table))
        if form not in (ROWS, DMS, DMS_PARQUET) or config.kind(entry.sink) == "event_log":
            continue
        said = dict(entry.of_table)
        if form == DMS and "schema" not in table.said and not _has_header(source):
            sentence = f"{place(table.path)}: its files have no header, so nothing says what its columns are"
            hint = "write 'schema: {COLUMN: TYPE, ...}' in it, in their order, or 'csv: {header: true}' in the source"
            yield Problem(table.path, "missing", sentence, hint)
        declares = text(source, "transport") == QUERY and "query" in source
        if declares and "schema" not in table.said:
            sentence = f"{place(table.path)}: nothing says what the columns of its query are"
            yield Problem(table.path, "missing", sentence, "write 'schema: {COLUMN: TYPE, ...}' in it")
        of_text = text(source, "transport") in (SNAPSHOTS, FILES) and text(source, "files") in ("csv", "jsonl")
        if of_text and "schema" not in table.said:
            what = "files" if text(source, "transport") == FILES else "snapshots"
            sentence = f"{place(table.path)}: its {what} are text, so nothing says what its columns are"
            yield Problem(table.path, "missing", sentence, "write 'schema: {COLUMN: TYPE, ...}' in it")
        parquet = text(source, "transport") == FILES and text(source, "files") == "parquet"
        typed = text(source, "transport") in OF_KNOWN_TYPES or form == DMS_PARQUET or parquet
        if typed and "schema" in table.said and not (of_text or declares):
            what = OF_KNOWN_TYPES.get(text(source, "transport") or "", "Parquet files")
            sentence = f"{place(table.path)}: rows of {what} have the types of its columns"
            yield Problem((*table.path, "schema"), "inapplicable", sentence, "remove it")
        if (entry.policy != "append" or text(source, "transport") in KEYED) and said["keys"] == "None":
            sentence = f"{place(table.path)}: its records are rows, which do not say what their key is"
            yield Problem(table.path, "missing", sentence, "write 'keys: [...]' in it")
        if said["tombstones"] == "delete" and not _takes_tombstones(source):
            at = (*next((p for p, keys in ((entry.path, entry.said), (table.path, table.said)) if "tombstones" in keys),
                        ("defaults",)), "tombstones")  # fmt: skip
            sentence = f"{place(at)}: records without a value delete nothing with format {quoted(form)}"
            yield Problem(at, "inapplicable", sentence, "remove it")


def _takes_tombstones(source: dict[str, Any]) -> bool:
    """Whether records without a value may delete rows: these say nothing of theirs, and are in the order of offsets."""
    said = {"operation_column", "sequence_columns"} & source.keys()
    return text(source, "format") == ROWS and text(source, "transport") in ("kafka", "archive") and not said


def _of_events(config: View) -> Iterator[Problem]:
    """Keys that tables of an outbox's events may not have: what events are made of, and what tells them apart, is fixed."""
    for path, said in config.levels:
        table = next((t for t in config.tables if t.path == path[:2]), None)
        source = (config.sources or {}).get((table.source if table else None) or "", {})
        for key in ("schema", "keys", "tombstones", "out_of_range") if text(source, "format") == OUTBOX else ():
            if key in said:
                sentence = f"key '{key}' in {place(path)} means nothing with format {quoted(OUTBOX)}: columns are fixed"
                yield Problem((*path, key), "inapplicable", sentence, "remove it: the key of an event is its id")


def _of_units(config: View) -> Iterator[Problem]:
    """Debezium sends times without a zone as numbers, whose unit depends on the column. Documents, which have an `_id`, have
    dates of their own."""
    for table in config.tables:
        if text((config.sources or {}).get(table.source or "", {}), "format") != DEBEZIUM or "_id" in table.types:
            continue
        for name, kind in table.types.items():
            known = UNITS.get(str(kind).strip().lower())
            if known:
                at = (*table.path, "schema", name)
                sentence = f"{place(at)}: {quoted(kind)} does not say the unit in which the connector sends numbers"
                yield Problem(at, "missing", sentence, f"write {known}: the unit is the one that is sent (docs/types.md)")


def _of_compacted(config: View) -> Iterator[Problem]:
    """Messages without a value are taken for deletes where a topic is compacted, and that is no history. Whether it is the
    broker knows; flattened rows may have no other deletes."""
    for table, entry in config.entries():
        source = (config.sources or {}).get(table.source or "", {})
        of_events = text(source, "format") in (DEBEZIUM, AVRO) and source.get("flattened") is not True
        every = entry.policy in ("scd2", "append") or config.kind(entry.sink) == "event_log"
        if of_events and every and dict(entry.of_table)["tombstones"] == "delete":
            kept = "the event log" if config.kind(entry.sink) == "event_log" else f"policy {quoted(entry.policy)}"
            sentence = (
                f"{place(entry.path)}: {kept} keeps every change, and a topic that is compacted, as `tombstones: delete` "
                "says, keeps the last one of a key"
            )
            hint = "let it read a topic with cleanup.policy=delete; `replicator doctor` asks the broker how it is"
            yield Problem(entry.path, "no_history", sentence, hint, severity="warning")


def _of_flattened(at: Path, said: dict[str, str]) -> Iterator[Problem]:
    """Unless the connector says otherwise, deletes of flattened rows come as records without a value only."""
    if said["tombstones"] == "None":
        sentence = f"{place(at)}: nothing says whether records without a value delete rows, as flattened deletes may be"
        hint = "write 'tombstones: delete', or 'tombstones: ignore' with delete.tombstone.handling.mode=rewrite"
        yield Problem(at, "missing", sentence, hint)


def _has_header(source: dict[str, Any]) -> bool:
    csv = source.get("csv")
    return isinstance(csv, dict) and csv.get("header") is True
