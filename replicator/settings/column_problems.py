"""Checks rules for single columns, as far as the config alone shows problems."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from replicator.domain.suggestions import suggest_name
from replicator.domain.transform.expressions import list_columns

from .column_transform_problems import check_column_transforms
from .columns import FIELD
from .conditions import parse_condition
from .config_view import NON_MIRROR_KINDS, PRIVATE, ConfigView, EntryView, Rule, TableView, get_text
from .event_columns import check_event_columns
from .expression_problems import check_expressions
from .expressions import InvalidExpressionText
from .findings import Path, PathProblem, describe_path, quote_name
from .formats import get_format

ADDING_KEYS = frozenset({"metadata", "constant", "expression"})
HASHING_MASKS = ("hmac", "truncate")
LIST = "list<"
CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")


def check_columns(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong with `columns`."""
    for path, said in config.levels:
        if path == ("defaults",) and "columns" in said:
            sentence = "columns in defaults would apply to every table"
            yield PathProblem((*path, "columns"), "inapplicable", sentence, "write them in the tables that have them")
    for table in config.tables:
        yield from _check_privacy(config, table)
        if table.of_events:
            yield from check_event_columns(table)
        yield from _check_unknown(
            table, (*table.path, "columns"), table.columns, told=PRIVATE if table.of_events else frozenset()
        )
        yield from _check_lists(table, (*table.path, "columns"), table.columns)
        yield from check_expressions(table)
        yield from check_column_transforms(config, table)
        for entry in table.to or ():
            if config.get_kind(entry.sink) not in NON_MIRROR_KINDS:
                yield from _check_unknown(table, (*entry.path, "columns"), entry.columns)
                yield from _check_lists(table, (*entry.path, "columns"), entry.columns)
                yield from _check_undone_masks(table, entry)
                yield from _check_keys(table, entry)
                yield from _check_conditions(table, entry)


def _is_private(rule: Rule) -> bool:
    return bool(PRIVATE & rule.keys())


def _check_privacy(config: ConfigView, table: TableView) -> Iterator[PathProblem]:
    """Masks of a table whose records could not be stored without the values."""
    private = [name for name, rule in table.columns.items() if _is_private(rule)]
    source = (config.sources or {}).get(table.source or "", {})
    if not private or get_text(source, "format") is None:
        return
    why = _describe_unmasked(source)
    if why:
        path = (*table.path, "columns", private[0])
        sentence = f"{describe_path(path)} keeps values out of all that is stored of the table, and {why}"
        yield PathProblem(path, "inapplicable", sentence, "write it in the 'to' entries: there it holds for their targets")
    for name in private:
        path = (*table.path, "columns", name)
        for other in sorted(table.list_names(name)):
            told, step = _describe_needed_column(source, other)
            if told:
                called = "" if other == name else f", called {quote_name(other)} by 'renamed_columns',"
                sentence = f"{describe_path(path)}{called} masks {told} of source {table.source!r}"
                yield PathProblem(path, "contradiction", sentence, f"write it in the 'to' entries, or {step}")


def _describe_needed_column(source: dict[str, Any], name: str) -> tuple[str, str]:
    """The use of a column that the decoder of the source needs, and another way to get its values. Empty for other
    columns."""
    if name in _list_needed_columns(source):
        return "a column with the operations or the order of the records", "use other columns for these"
    if name == source.get("cursor_column"):
        return "the 'cursor_column'", "name another one: it shows which rows are new"
    return "", ""


def _describe_unmasked(source: dict[str, Any]) -> str:
    """Why something of a source is stored as it is; empty where nothing is."""
    form = get_text(source, "format") or ""
    masks = get_format(form).masks_values
    return "" if masks else f"records of the format {quote_name(form)} cannot be written without them"


def _list_needed_columns(source: dict[str, Any]) -> set[str]:
    """The columns by which records say what they are."""
    order = source.get("sequence_columns")
    said = [source.get("operation_column"), *(order if isinstance(order, list) else [])]
    return {name for name in said if isinstance(name, str)}


def _check_unknown(
    table: TableView, path: Path, rules: dict[str, Rule], *, told: Collection[str] = frozenset()
) -> Iterator[PathProblem]:
    """`told`: keys of rules of which others say so. Fields of an event's payload are no columns."""
    for name, rule in rules.items():
        if (ADDING_KEYS | set(told)) & rule.keys() or (table.of_events and name.startswith(FIELD)):
            continue
        if table.declared is not None and name not in table.declared:
            sentence = f"{describe_path((*path, name))} is {table.unknown}"
            hint = suggest_name(name, table.declared) or table.known
            yield PathProblem((*path, name), "unknown_column", sentence, hint)


def _check_lists(table: TableView, path: Path, rules: dict[str, Rule]) -> Iterator[PathProblem]:
    """See `domain.transform.casts.is_hashable`: lists are what can be declared and is not."""
    for name, rule in rules.items():
        if rule.get("mask") in HASHING_MASKS and str(table.types.get(name, "")).strip().lower().startswith(LIST):
            at = (*path, name, "mask")
            sentence = f"{describe_path(at)} masks a list, which can be written in several ways"
            yield PathProblem(at, "inapplicable", sentence, "use 'nothing' or 'fixed', or drop the column")


def _check_undone_masks(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Check the rules of an entry for a column that the table keeps private: it may only be renamed or cast."""
    for name, rule in entry.columns.items():
        above = table.columns.get(name, {})
        if _is_private(above) and ("drop" in above or _is_private(rule) or ADDING_KEYS & rule.keys()):
            path = (*entry.path, "columns", name)
            sentence = f"{describe_path(path)} contradicts its table, which keeps the column's values private"
            yield PathProblem(path, "contradiction", sentence, "remove it here, or write it in the entries alone")


def _check_keys(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    keys = entry.row_transforms.get("keys", ((), None))[1]
    for name in keys if isinstance(keys, list) else ():
        rules = (((*table.path, "columns"), table.columns), ((*entry.path, "columns"), entry.columns))
        names = table.list_names(name) if isinstance(name, str) else ()
        for path, rule in (((*path, one), said[one]) for path, said in rules for one in sorted(names) if one in said):
            if "drop" in rule or rule.get("mask", "hmac") != "hmac":
                sentence = f"{describe_path(path)} removes what identifies rows: {quote_name(name)} is a key column"
                yield PathProblem(path, "contradiction", sentence, "use 'mask: hmac', which keeps keys different")


def _check_conditions(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Conditions and orders by columns whose values the lane does not get."""
    for key, (path, said) in entry.row_transforms.items():
        for name in sorted(table.private & _list_named_columns(key, said)):
            sentence = f"{describe_path(path)} asks for {quote_name(name)}, whose values its table keeps private"
            yield PathProblem(
                path, "contradiction", sentence, "ask for another column, or write the mask in the 'to' entries"
            )


def _list_named_columns(key: str, said: Any) -> set[str]:
    if key == "sequence_by":
        return {name for name in (said if isinstance(said, list) else [said]) if isinstance(name, str)}
    if key not in CONDITIONS or not isinstance(said, str):
        return set()
    try:
        return set(list_columns(parse_condition(said)))
    except InvalidExpressionText:
        return set()  # Which is said of the value itself.
