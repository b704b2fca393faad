"""Options of targets that stand where they mean nothing, or that the engine cannot keep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from replicator.domain.errors import suggest_name
from replicator.ports.options import DURATION, to_timedelta

from .config_view import ConfigView, EntryView, TableView
from .findings import Path, PathProblem, describe_path, quote_name
from .tables import TABLE_OPTIONS
from .transform_checks import LISTS, get_new_name, is_added, is_selected, list_rules

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
    yield from _check_entries(config)
    yield from _check_unused(config)
    yield from _check_catalog_names(config)
    for name, sink in (config.sinks or {}).items():
        yield from _check_retention(("sinks", name, "vacuum_retain"), sink.get("vacuum_retain"))
    for table, entry in config.list_entries():
        if config.get_sink_model(entry.sink).is_lake:
            yield from _check_layout_columns(table, entry)
            yield from _check_clusters(entry)
            yield from _check_engine(config, entry)
            yield from _check_retention(*entry.options.get("vacuum_retain", ((), None)))


def _check_entries(config: ConfigView) -> Iterator[PathProblem]:
    """Options of entries whose sink has none; event logs have no keys at all, which is said elsewhere."""
    for _, entry in config.list_entries():
        kind = config.get_kind(entry.sink)
        if config.get_sink_model(entry.sink).has_table_options or not config.is_mirror(entry.sink):
            continue
        for key in sorted(entry.keys & set(TABLE_OPTIONS)):
            sentence = f"key '{key}' in {describe_path(entry.path)} means nothing for a sink of kind {quote_name(kind)}"
            yield PathProblem((*entry.path, key), "inapplicable", sentence, "remove it; it is an option of Delta tables")


def _check_unused(config: ConfigView) -> Iterator[PathProblem]:
    """Options of a table, or of the defaults, that no entry has a use for."""
    used = {path for _, e in config.list_entries() if _has_options(config, e) for path, _ in e.options.values()}
    for path, keys in config.levels:
        if len(path) > 2:
            continue
        inner = [e for _, e in config.list_entries() if e.path[: len(path)] == path or path == ("defaults",)]
        for key in sorted(keys & set(TABLE_OPTIONS)):
            if inner and (*path, key) not in used and not any(key in e.keys for e in inner):
                sentence = f"key '{key}' in {describe_path(path)} means nothing: none of its entries goes to a Delta sink"
                yield PathProblem((*path, key), "inapplicable", sentence, "remove it")


def _has_options(config: ConfigView, entry: EntryView) -> bool:
    """Also true for an unknown sink, which is reported elsewhere."""
    return config.get_sink_model(entry.sink).has_table_options


def _check_layout_columns(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Find layout columns that the target will not have, or that have only one value there."""
    rules = list_rules(table, entry)
    sources = {now: name for name, (_, rule) in rules.items() if (now := get_new_name(name, rule))}
    for option in LAYOUT_KEYS:
        path, columns = entry.options.get(option, ((), None))
        for name in filter(_is_text, columns if isinstance(columns, list) else ()):
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
                by = next(entry.row_transforms[key][0] for key in LISTS if key in entry.row_transforms)
                yield PathProblem(path, "contradiction", f"{named}, which {describe_path(by)} leaves out", OTHER_COLUMN_HINT)
            elif table.declared is not None and name not in (*table.declared, *sources):
                names = [*(n for n in table.declared if n not in rules and is_selected(entry, n)), *sources]
                hint = suggest_name(name, names) or table.known
                yield PathProblem(path, "unknown_column", f"{named}, which is {table.unknown}", hint)
            elif rule.get("mask") in SINGLE_VALUE_MASKS:
                sentence = f"{named}, which has only one value after {describe_path(at)}"
                yield PathProblem(path, "one_value", sentence, "name a column with several values", severity="warning")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _check_clusters(entry: EntryView) -> Iterator[PathProblem]:
    path, columns = entry.options.get("cluster_by", ((), None))
    if isinstance(columns, list) and len(columns) > MAX_CLUSTERS:
        sentence = f"{describe_path(path)} names {len(columns)} columns; Delta clusters by up to {MAX_CLUSTERS}"
        yield PathProblem(path, "value", sentence, "keep those that queries look for")
    if columns and entry.options.get("partition_by", ((), None))[1]:
        sentence = f"{describe_path(path)} and 'partition_by' exclude each other: Delta clusters no table with partitions"
        yield PathProblem(path, "contradiction", sentence, "keep one of the two")


def _check_catalog_names(config: ConfigView) -> Iterator[PathProblem]:
    for name, sink in (config.sinks or {}).items():
        if config.get_sink_model(name).is_lake and sink.get("schema") and config.engine != "spark":
            sentence = (
                f"schema in sink {quote_name(name)} needs the engine 'spark': others have no catalog to name tables in"
            )
            yield PathProblem(("sinks", name, "schema"), "engine", sentence, SPARK_HINT, severity="warning")


def _check_engine(config: ConfigView, entry: EntryView) -> Iterator[PathProblem]:
    for option, why in NEEDS_SPARK.items():
        path, wanted = entry.options.get(option, ((), False))
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
