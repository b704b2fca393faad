"""Checks the options of targets, and the entries through which events of an outbox go to the event store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from replicator.domain.events import EVENT_STORE
from replicator.ports.options import DURATION, to_timedelta

from .adapter_models import OUTBOX
from .config_view import ConfigView, EntryView, TableView, get_text
from .document import Path, PathProblem, describe_parent, describe_path, quote_name
from .transform_checks import LISTS, MASK_KEYS, get_new_name, is_added, is_selected, list_rules

LAYOUT_KEYS = ("partition_by", "cluster_by")
OTHER_COLUMN_HINT = "name another column, or keep this one"
SINGLE_VALUE_MASKS = ("nothing", "fixed")
"""Masks that are not made of the value."""
MAX_CLUSTERS = 4
NEEDS_SPARK = {
    "deletion_vectors": " until the table has them: delta-rs reads them and writes none",
    "cluster_by": ": delta-rs reads a clustered table and commits nothing to it",
}
USUAL_RETENTION = timedelta(days=7)
"""Delta Lake's retention. By default vacuums of other writers refuse a shorter one."""
SPARK_HINT = "run it with '--engine spark', or remove it"


def check_target_options(config: ConfigView) -> Iterator[PathProblem]:
    """All problems of the options of targets that the config alone shows."""
    for name, sink in (config.sinks or {}).items():
        if config.get_sink_model(name).is_lake and sink.get("schema") and config.engine != "spark":
            sentence = (
                f"schema in sink {quote_name(name)} needs the engine 'spark': others have no catalog to name tables in"
            )
            yield PathProblem(("sinks", name, "schema"), "engine", sentence, SPARK_HINT, severity="warning")
        yield from _check_retention(("sinks", name, "vacuum_retain"), sink.get("vacuum_retain"))
    for table, entry in config.list_entries():
        if config.get_sink_model(entry.sink).is_lake:
            yield from _check_layout_columns(table, entry)
            yield from _check_lake_options(config, entry)
            yield from _check_retention(*entry.find("vacuum_retain"))


def _check_layout_columns(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Find layout columns that the target will not have, or that have only one value there."""
    rules = list_rules(table, entry)
    sources = {now: name for name, (_, rule) in rules.items() if (now := get_new_name(name, rule))}
    for option in LAYOUT_KEYS:
        path, columns = entry.find(option)
        for name in columns if isinstance(columns, list) else ():
            if not isinstance(name, str):
                continue
            column = sources.get(name, name)
            at, rule = rules.get(column, ((), {}))
            named = f"{describe_path(path)} names {quote_name(name)}"
            if rule and name not in sources:
                does, step = (
                    ("drops", OTHER_COLUMN_HINT)
                    if "drop" in rule
                    else ("renames", f"write {quote_name(get_new_name(column, rule))}")
                )
                yield PathProblem(path, "contradiction", f"{named}, which {describe_path(at)} {does}", step)
            elif not is_added(rule) and not is_selected(entry, column):
                by = next(entry.nearest[key][0] for key in LISTS if key in entry.nearest)
                yield PathProblem(path, "contradiction", f"{named}, which {describe_path(by)} leaves out", OTHER_COLUMN_HINT)
            elif table.types and name not in (*table.types, *sources):
                names = [*(n for n in table.types if n not in rules and is_selected(entry, n)), *sources]
                yield table.make_unknown_column(path, f"{named}, which", name, names)
            elif rule.get("mask") in SINGLE_VALUE_MASKS:
                sentence = f"{named}, which has only one value after {describe_path(at)}"
                yield PathProblem(path, "one_value", sentence, "name a column with several values", severity="warning")


def _check_lake_options(config: ConfigView, entry: EntryView) -> Iterator[PathProblem]:
    path, columns = entry.find("cluster_by")
    if isinstance(columns, list) and len(columns) > MAX_CLUSTERS:
        sentence = f"{describe_path(path)} names {len(columns)} columns; Delta clusters by up to {MAX_CLUSTERS}"
        yield PathProblem(path, "value", sentence, "keep those that queries look for")
    if columns and entry.get_value("partition_by"):
        sentence = f"{describe_path(path)} and 'partition_by' exclude each other: Delta clusters no table with partitions"
        yield PathProblem(path, "contradiction", sentence, "keep one of the two")
    for option, why in NEEDS_SPARK.items():
        path, wanted = entry.find(option)
        if wanted and config.engine != "spark":
            sentence = f"{describe_path(path)} needs the engine 'spark'{why}"
            # An error would keep commands that only look from a config whose daemon is started with another engine.
            yield PathProblem(path, "engine", sentence, SPARK_HINT, severity="warning")


def _check_retention(path: Path, retention: object) -> Iterator[PathProblem]:
    if isinstance(retention, str) and re.fullmatch(DURATION, retention) and to_timedelta(retention) < USUAL_RETENTION:
        sentence = (
            f"{describe_path(path)} is shorter than the 7 days that Delta readers expect: those of older versions will fail"
        )
        yield PathProblem(path, "short_retention", sentence, "keep it if no one reads these", severity="warning")


# Checks entries through which events of an outbox go to the event store.

OTHER_TARGET_KEYS = ("sequence_by", "apply_as_deletes", "apply_as_truncates", "column_list", "except_column_list")
"""Keys of the table or of `defaults` that would change an event. All other keys only affect other targets."""


def is_event_store(config: ConfigView, sink: str | None) -> bool:
    """True if an entry names the event store, configured or not."""
    return sink == EVENT_STORE and EVENT_STORE not in (config.sinks or ())


def check_event_store(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong with entries that name the store of events."""
    location = get_text(config.event_store, "path") or ""
    for table, entry in config.list_entries():
        if not is_event_store(config, entry.sink):
            continue
        at = (*entry.path, "sink")
        if not config.event_store:
            place = describe_parent(entry.path)
            sentence = f"unknown sink {quote_name(EVENT_STORE)} {place}: the config has no 'event_store'"
            yield PathProblem(at, "unknown_sink", sentence, "add one, for example event_store: {path: ./deltalake/events}")
        form = get_text(config.get_source(table), "format")
        if form is not None and form != OUTBOX:
            sentence = (
                f"{describe_path(entry.path)}: the store of events only takes events of an outbox, and not records of "
                f"format {quote_name(form)}"
            )
            yield PathProblem(at, "inapplicable", sentence, f"name a sink; or a source with 'format: {OUTBOX}'")
        yield from _check_event_keys(table, entry)
        # In an object store Spark, which stores events of programs, would replace a commit that a lane makes at that time.
        if config.engine == "spark" and "://" in location and not location.startswith("file://"):
            sentence = (
                f"{describe_path(entry.path)}: on the engine 'spark' lanes do not write a store of events in an object "
                "store yet"
            )
            step = "set 'engine: local', or keep the store in a folder or a database"
            yield PathProblem(at, "not_yet_supported", sentence, step)


def _check_event_keys(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    paths = []
    for key in OTHER_TARGET_KEYS:
        path, setting = entry.find(key)
        if setting is not None and key not in entry.raw:
            paths.append(path)
    others = [name for name, rule in table.columns.items() if not rule.keys() <= MASK_KEYS]
    if others:
        paths.append((*table.path, "columns", others[0]))
    for path in paths:
        sentence = (
            f"{describe_path(path)} means nothing for {describe_path(entry.path)}: the store of events "
            f"keeps events as they are"
        )
        yield PathProblem(path, "inapplicable", sentence, "write it in the entries of the other targets")
