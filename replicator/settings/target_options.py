"""Options of targets that stand where they mean nothing, or that the engine cannot keep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from .fields import DURATION, timespan
from .findings import Path, Problem, place, quoted
from .lanes import WITHOUT_OPTIONS
from .nearest import did_you_mean
from .remade_problems import LISTS, is_added, is_chosen, name_now, rules_of
from .tables import TABLE_OPTIONS
from .views import EntryView, TableView, View

LAYOUTS = ("partition_by", "cluster_by")
KEEP = "name another column, or keep this one"
ONE_VALUE = ("nothing", "fixed")
"""Masks that are not made of the value."""
MOST_CLUSTERS = 4
NEEDS_SPARK = {
    "deletion_vectors": " until the table has them: delta-rs reads them and writes none",
    "cluster_by": ": delta-rs reads a clustered table and commits nothing to it",
}
USUAL_RETENTION = timedelta(days=7)
"""Of Delta Lake. Vacuums of other writers refuse less unless they are told not to."""
WITH_SPARK = "run it with '--engine spark', or remove it"


def target_option_problems(config: View) -> Iterator[Problem]:
    """Everything wrong with the options of targets that can be told from the config alone."""
    yield from _in_entries(config)
    yield from _of_no_target(config)
    yield from _names_of_another_engine(config)
    for name, sink in (config.sinks or {}).items():
        yield from _short_retention(("sinks", name, "vacuum_retain"), sink.get("vacuum_retain"))
    for table, entry in config.entries():
        if config.kind(entry.sink) == "delta":
            yield from _columns(table, entry)
            yield from _clusters(entry)
            yield from _of_another_engine(config, entry)
            yield from _short_retention(*entry.options.get("vacuum_retain", ((), None)))


def _in_entries(config: View) -> Iterator[Problem]:
    """Options of entries whose sink has none; event logs have no keys at all, which is said elsewhere."""
    for _, entry in config.entries():
        kind = config.kind(entry.sink)
        for key in sorted(entry.said & set(TABLE_OPTIONS)) if kind == "postgres" else ():
            sentence = f"key '{key}' in {place(entry.path)} means nothing for a sink of kind {quoted(kind)}"
            yield Problem((*entry.path, key), "inapplicable", sentence, "remove it; it is an option of Delta tables")


def _of_no_target(config: View) -> Iterator[Problem]:
    """Options of a table, or of the defaults, that no entry has a use for."""
    used = {path for _, e in config.entries() if _has_options(config, e) for path, _ in e.options.values()}
    for path, said in config.levels:
        if len(path) > 2:
            continue
        inner = [e for _, e in config.entries() if e.path[: len(path)] == path or path == ("defaults",)]
        for key in sorted(said & set(TABLE_OPTIONS)):
            if inner and (*path, key) not in used and not any(key in e.said for e in inner):
                sentence = f"key '{key}' in {place(path)} means nothing: none of its entries goes to a Delta sink"
                yield Problem((*path, key), "inapplicable", sentence, "remove it")


def _has_options(config: View, entry: EntryView) -> bool:
    """True as well for a sink that is not known: that is said elsewhere."""
    return config.kind(entry.sink) not in WITHOUT_OPTIONS


def _columns(table: TableView, entry: EntryView) -> Iterator[Problem]:
    """Columns by which the files of a target are laid out, and that it will not have, or of which it has one value."""
    rules = rules_of(table, entry)
    sources = {now: name for name, (_, rule) in rules.items() if (now := name_now(name, rule))}
    for option in LAYOUTS:
        path, columns = entry.options.get(option, ((), None))
        for name in filter(_is_text, columns if isinstance(columns, list) else ()):
            column = sources.get(name, name)
            at, rule = rules.get(column, ((), {}))
            named = f"{place(path)} names {quoted(name)}"
            if rule and name not in sources:
                does, step = ("drops", KEEP) if "drop" in rule else ("renames", f"write {quoted(name_now(column, rule))}")
                yield Problem(path, "contradiction", f"{named}, which {place(at)} {does}", step)
            elif not is_added(rule) and not is_chosen(entry, column):
                by = next(entry.shape[key][0] for key in LISTS if key in entry.shape)
                yield Problem(path, "contradiction", f"{named}, which {place(by)} leaves out", KEEP)
            elif table.declared is not None and name not in (*table.declared, *sources):
                known = [*(n for n in table.declared if n not in rules and is_chosen(entry, n)), *sources]
                hint = did_you_mean(name, known) or table.known
                yield Problem(path, "unknown_column", f"{named}, which is {table.unknown}", hint)
            elif rule.get("mask") in ONE_VALUE:
                sentence = f"{named}, of whose values {place(at)} leaves one"
                yield Problem(path, "one_value", sentence, "name a column that tells rows apart", severity="warning")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _clusters(entry: EntryView) -> Iterator[Problem]:
    path, columns = entry.options.get("cluster_by", ((), None))
    if isinstance(columns, list) and len(columns) > MOST_CLUSTERS:
        sentence = f"{place(path)} names {len(columns)} columns; Delta clusters by up to {MOST_CLUSTERS}"
        yield Problem(path, "value", sentence, "keep those that queries look for")
    if columns and entry.options.get("partition_by", ((), None))[1]:
        sentence = f"{place(path)} and 'partition_by' exclude each other: Delta clusters no table with partitions"
        yield Problem(path, "contradiction", sentence, "keep one of the two")


def _names_of_another_engine(config: View) -> Iterator[Problem]:
    for name, sink in (config.sinks or {}).items():
        if sink.get("kind") == "delta" and sink.get("schema") and config.engine != "spark":
            sentence = f"schema in sink {quoted(name)} needs the engine 'spark': others have no catalog to name tables in"
            yield Problem(("sinks", name, "schema"), "engine", sentence, WITH_SPARK, severity="warning")


def _of_another_engine(config: View, entry: EntryView) -> Iterator[Problem]:
    for option, why in NEEDS_SPARK.items():
        path, wanted = entry.options.get(option, ((), False))
        if wanted and config.engine != "spark":
            sentence = f"{place(path)} needs the engine 'spark'{why}"
            # An error would keep commands that only look from a config whose daemon is started with another engine.
            yield Problem(path, "engine", sentence, WITH_SPARK, severity="warning")


def _short_retention(path: Path, said: object) -> Iterator[Problem]:
    if isinstance(said, str) and re.fullmatch(DURATION, said) and timespan(said) < USUAL_RETENTION:
        sentence = f"{place(path)} is shorter than the 7 days that Delta readers expect: those of older versions will fail"
        yield Problem(path, "short_retention", sentence, "keep it if nobody reads these", severity="warning")
