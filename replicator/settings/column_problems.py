"""What is said of single columns and cannot be, as far as the config alone tells."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from replicator.domain.conditions import columns_of

from .columns import FIELD
from .conditions import condition
from .event_columns import event_column_problems
from .expression_problems import expression_problems
from .expressions import NoExpression
from .findings import Path, Problem, place, quoted
from .nearest import did_you_mean
from .remade_problems import remade_problems
from .source_parts import OUTBOX
from .views import NO_MIRRORS, PRIVATE, EntryView, Rule, TableView, View, text

ADDING = frozenset({"metadata", "constant", "expression"})
HASHING = ("hmac", "truncate")
LIST = "list<"
CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")
VEILING = frozenset(
    {
        *("debezium_json", "debezium_avro", "canal_json", "maxwell_json", "ogg_json", "dts_avro"),
        *("rows", "dms_csv", "dms_parquet", OUTBOX),
    }
)
"""Formats whose records can be written anew without private values."""


def column_problems(config: View) -> Iterator[Problem]:
    """Everything wrong with `columns`."""
    for path, said in config.levels:
        if path == ("defaults",) and "columns" in said:
            sentence = "columns in defaults would be those of every table"
            yield Problem((*path, "columns"), "inapplicable", sentence, "write them in the tables that have them")
    for table in config.tables:
        yield from _privacy(config, table)
        if table.of_events:
            yield from event_column_problems(table)
        yield from _unknown(table, (*table.path, "columns"), table.columns, told=PRIVATE if table.of_events else frozenset())
        yield from _several(table, (*table.path, "columns"), table.columns)
        yield from expression_problems(table)
        yield from remade_problems(config, table)
        for entry in table.to or ():
            if config.kind(entry.sink) not in NO_MIRRORS:
                yield from _unknown(table, (*entry.path, "columns"), entry.columns)
                yield from _several(table, (*entry.path, "columns"), entry.columns)
                yield from _undone(table, entry)
                yield from _keys(table, entry)
                yield from _asked(table, entry)


def _is_private(rule: Rule) -> bool:
    return bool(PRIVATE & rule.keys())


def _privacy(config: View, table: TableView) -> Iterator[Problem]:
    """Masks of a table whose records could not be stored without the values."""
    private = [name for name, rule in table.columns.items() if _is_private(rule)]
    source = (config.sources or {}).get(table.source or "", {})
    if not private or text(source, "format") is None:
        return
    why = _unveiled(source)
    if why:
        path = (*table.path, "columns", private[0])
        sentence = f"{place(path)} keeps values out of all that is stored of the table, and {why}"
        yield Problem(path, "inapplicable", sentence, "write it in the 'to' entries: there it holds for their targets")
    for name in private:
        path = (*table.path, "columns", name)
        for other in sorted(table.names_of(name)):
            told, step = _told_by(source, other)
            if told:
                called = "" if other == name else f", called {quoted(other)} by 'renamed_columns',"
                sentence = f"{place(path)}{called} masks {told} of source {table.source!r}"
                yield Problem(path, "contradiction", sentence, f"write it in the 'to' entries, or {step}")


def _told_by(source: dict[str, Any], name: str) -> tuple[str, str]:
    """What a column of that name tells of the records of a source that must be told, and what else could; empty for
    nothing."""
    if name in _telling(source):
        return "what tells operations or the order of the records", "let other columns tell that"
    if name == source.get("cursor_column"):
        return "the 'cursor_column'", "name another one: it tells what is new"
    return "", ""


def _unveiled(source: dict[str, Any]) -> str:
    """Why something of a source is stored as it is; empty where nothing is."""
    kind = text(source, "format") or ""
    return "" if kind in VEILING else f"records of the format {quoted(kind)} cannot be written without them"


def _telling(source: dict[str, Any]) -> set[str]:
    """The columns by which records say what they are."""
    order = source.get("sequence_columns")
    said = [source.get("operation_column"), *(order if isinstance(order, list) else [])]
    return {name for name in said if isinstance(name, str)}


def _unknown(
    table: TableView, path: Path, rules: dict[str, Rule], *, told: Collection[str] = frozenset()
) -> Iterator[Problem]:
    """`told`: keys of rules of which others say so. Fields of an event's payload are no columns."""
    for name, rule in rules.items():
        if (ADDING | set(told)) & rule.keys() or (table.of_events and name.startswith(FIELD)):
            continue
        if table.declared is not None and name not in table.declared:
            sentence = f"{place((*path, name))} is {table.unknown}"
            hint = did_you_mean(name, table.declared) or table.known
            yield Problem((*path, name), "unknown_column", sentence, hint)


def _several(table: TableView, path: Path, rules: dict[str, Rule]) -> Iterator[Problem]:
    """See `domain.casting.is_hashable`: lists are what can be declared and is not."""
    for name, rule in rules.items():
        if rule.get("mask") in HASHING and str(table.types.get(name, "")).strip().lower().startswith(LIST):
            at = (*path, name, "mask")
            sentence = f"{place(at)} masks a list, which holds several values and has no one text"
            yield Problem(at, "inapplicable", sentence, "use 'nothing' or 'fixed', or drop the column")


def _undone(table: TableView, entry: EntryView) -> Iterator[Problem]:
    """What an entry says of a column that the table keeps private: it may only be called otherwise, or cast."""
    for name, rule in entry.columns.items():
        above = table.columns.get(name, {})
        if _is_private(above) and ("drop" in above or _is_private(rule) or ADDING & rule.keys()):
            path = (*entry.path, "columns", name)
            sentence = f"{place(path)} says something else than its table, which keeps the column's values private"
            yield Problem(path, "contradiction", sentence, "remove it here, or write it in the entries alone")


def _keys(table: TableView, entry: EntryView) -> Iterator[Problem]:
    keys = entry.shape.get("keys", ((), None))[1]
    for name in keys if isinstance(keys, list) else ():
        rules = (((*table.path, "columns"), table.columns), ((*entry.path, "columns"), entry.columns))
        names = table.names_of(name) if isinstance(name, str) else ()
        for path, rule in (((*path, one), said[one]) for path, said in rules for one in sorted(names) if one in said):
            if "drop" in rule or rule.get("mask", "hmac") != "hmac":
                sentence = f"{place(path)} takes away what tells rows apart: {quoted(name)} is a key column"
                yield Problem(path, "contradiction", sentence, "use 'mask: hmac', under which keys stay keys")


def _asked(table: TableView, entry: EntryView) -> Iterator[Problem]:
    """Conditions and orders by columns whose values the lane does not get."""
    for key, (path, said) in entry.shape.items():
        for name in sorted(table.private & _named(key, said)):
            sentence = f"{place(path)} asks for {quoted(name)}, whose values its table keeps private"
            yield Problem(path, "contradiction", sentence, "ask for another column, or write the mask in the 'to' entries")


def _named(key: str, said: Any) -> set[str]:
    if key == "sequence_by":
        return {name for name in (said if isinstance(said, list) else [said]) if isinstance(name, str)}
    if key not in CONDITIONS or not isinstance(said, str):
        return set()
    try:
        return set(columns_of(condition(said)))
    except NoExpression:
        return set()  # Which is said of the value itself.
