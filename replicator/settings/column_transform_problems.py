"""Checks the results of `columns` that no target can have: names that exist already, and impossible casts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from replicator.domain.change import is_frame_column
from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.expr import Cast, Expr, Lit
from replicator.domain.table import TableSpec, is_reserved
from replicator.domain.transform.columns import METADATA, AddedColumn, ColumnRule, find_duplicates, refuse_change
from replicator.domain.transform.expressions import list_columns

from .config_view import NON_MIRROR_KINDS, ConfigView, EntryView, Rule, TableView
from .expression_problems import get_declared_table
from .expressions import InvalidExpressionText, parse_expression
from .findings import Path, PathProblem, describe_path, quote_name
from .types import find_type

ADDING_KEYS = ("metadata", "constant", "expression")
LISTS = ("column_list", "except_column_list")


def check_column_transforms(config: ConfigView, table: TableView) -> Iterator[PathProblem]:
    """Find the problems that would stop lanes at their first record."""
    told: set[tuple[Path, str]] = set()
    for entry in table.to or ():
        if config.get_kind(entry.sink) in NON_MIRROR_KINDS:
            continue
        for problem in (*_check_names(table, entry), *_check_casts(table, entry)):
            if (problem.path, problem.message) not in told:
                told.add((problem.path, problem.message))
                yield problem


def list_rules(table: TableView, entry: EntryView) -> dict[str, tuple[Path, Rule]]:
    """The rule of each column, with its path. The rule of the entry wins over the rule of its table."""
    levels = ((table.path, table.columns), (entry.path, entry.columns))
    return {name: ((*path, "columns", name), rule) for path, rules in levels for name, rule in rules.items()}


def _check_names(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Find two columns with one name, and names of columns that targets have in addition to the source's."""
    rules = list_rules(table, entry)
    now = {name: get_new_name(name, rule) for name, (_, rule) in rules.items()}
    others = [name for name in table.declared or () if name not in rules and is_selected(entry, name)]
    own = [*others, *(name for name, (_, rule) in rules.items() if not is_added(rule))]
    twice = {name.casefold() for name in find_duplicates([*filter(None, now.values()), *others], own)}
    for name, (path, rule) in rules.items():
        made = now[name]
        if made and (is_added(rule) or made != name):
            at = (*path, "rename") if made != name else path
            if is_reserved(made) or is_frame_column(made):
                sentence = (
                    f"{describe_path(at)} gives a column the name {quote_name(made)}, which replicator keeps for itself"
                )
                yield PathProblem(at, "reserved_name", sentence, "choose another name")
            elif made.casefold() in twice:
                sentence = f"{describe_path(at)} makes another column of the name {quote_name(made)}"
                yield PathProblem(at, "contradiction", sentence, "choose another name")


def get_new_name(name: str, rule: Rule) -> str:
    """The name that the target has; empty for none."""
    renamed = rule.get("rename")
    return "" if "drop" in rule else renamed if isinstance(renamed, str) else name


def is_added(rule: Rule) -> bool:
    """True if the rule adds a column to the source's own."""
    return any(key in rule for key in ADDING_KEYS)


def is_selected(entry: EntryView, name: str) -> bool:
    """The lists of columns of the entry have the column."""
    for key in LISTS:
        names = entry.row_transforms.get(key, ((), None))[1]
        if isinstance(names, list):
            return (name in names) == (key == "column_list")
    return True


def _check_casts(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Casts that no value of a known type survives."""
    types = get_declared_table(table)
    for name, (path, rule) in list_rules(table, entry).items():
        into = find_type(rule["cast"]) if isinstance(rule.get("cast"), str) else None
        if into is None:
            continue
        try:
            if not is_added(rule) and types is not None and name in types.column_names:
                refuse_change(ColumnRule(cast=into), _make_masked_column(rule, name, types), types)
            elif is_added(rule):
                _refuse_added(name, rule, into, types or TableSpec(table.match or "", ()))
        except ConfigProblem as why:
            at = (*path, "cast")
            yield PathProblem(at, "cast", f"{describe_path(at)}: {why.sentence}", why.next_step)


def _make_masked_column(rule: Rule, name: str, types: TableSpec) -> Any:
    """The column as the cast gets it: masked first."""
    column = types.column(name)
    text = rule.get("mask", "nothing") != "nothing"
    return type(column)(name, pa.string()) if text else column


def _refuse_added(name: str, rule: Rule, into: pa.DataType, table: TableSpec) -> None:
    if rule.get("metadata") in METADATA:
        AddedColumn(metadata=rule["metadata"], cast=into).get_type(name, table)
    elif isinstance(rule.get("constant"), str | int | float):
        AddedColumn(constant=rule["constant"], cast=into).get_type(name, table)
    made = _parse_typed_expression(rule.get("expression"), table)
    if made is not None:
        AddedColumn(expression=made, cast=into).get_type(name, table)


def _parse_typed_expression(said: object, table: TableSpec) -> Expr | None:
    """The expression, where the type of its value is known; of one that ends in a cast any value of that type stands for
    it."""
    try:
        made = parse_expression(said) if isinstance(said, str) else None
    except InvalidExpressionText:
        return None  # Which is said of the value itself.
    if made is None or list_columns(made) <= set(table.column_names):
        return made
    return Cast(Lit(None), made.type) if isinstance(made, Cast) else None
