"""Checks expressions and conditions, as far as the config alone shows problems. With declared columns, also types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.expr import Expr
from replicator.domain.suggestions import suggest_name
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.expressions import list_columns, refuse_condition, resolve_computed_column

from .conditions import parse_condition
from .config_view import EntryView, Rule, TableView
from .expressions import InvalidExpressionText, parse_expression
from .findings import Path, PathProblem, describe_path, quote_name
from .types import find_type

CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")


def check_expressions(table: TableView) -> Iterator[PathProblem]:
    """Everything wrong with the expressions of a table."""
    for path, made in _list_expressions((*table.path, "columns"), table.columns):
        yield from _check_expression(table, path, made)
    for entry in table.to or ():
        own = list(_list_expressions((*entry.path, "columns"), entry.columns))
        for path, made in own:
            yield from _check_expression(table, path, made)
        for path, made in (*own, *_list_expressions((*table.path, "columns"), table.columns)):
            yield from _check_masked(table, entry, path, made)
            yield from _check_partly_sent(entry, path, made)


def check_conditions(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Conditions that make no sense for the columns that the config declares, all of which they name."""
    for key in CONDITIONS:
        path, said = entry.row_transforms.get(key, ((), None))
        made = _parse(said, parse_condition)
        types = get_declared_table(table)
        if made is not None and types is not None and list_columns(made) <= set(types.column_names):
            yield from _check_types(path, partial(refuse_condition, made, types, key))


def _list_expressions(path: Path, rules: dict[str, Rule]) -> Iterator[tuple[Path, Expr]]:
    for name, rule in rules.items():
        made = _parse(rule.get("expression"), parse_expression)
        if made is not None:
            yield (*path, name), made


def _parse(said: object, reader: Callable[[str], Expr]) -> Expr | None:
    try:
        return reader(said) if isinstance(said, str) else None
    except InvalidExpressionText:
        return None  # Which is said of the value itself.


def _check_expression(table: TableView, path: Path, made: Expr) -> Iterator[PathProblem]:
    for name in sorted(list_columns(made) & table.private):
        sentence = f"{describe_path(path)} is computed from {quote_name(name)}, whose values its table keeps private"
        yield PathProblem(
            path,
            "contradiction",
            sentence,
            "write the mask or the drop in the 'to' entries, or compute it from other columns",
        )
    if table.declared is None:
        return
    unknown = sorted(list_columns(made) - set(table.declared))
    for name in unknown:
        sentence = f"{describe_path(path)} names {quote_name(name)}, which is {table.unknown}"
        hint = suggest_name(name, table.declared) or table.known
        yield PathProblem(path, "unknown_column", sentence, hint)
    types = get_declared_table(table)
    if types is not None and not unknown:
        yield from _check_types(path, partial(resolve_computed_column, str(path[-1]), made, types))


def get_declared_table(table: TableView) -> TableSpec | None:
    """The table as the config declares it; None where it does not, or by types of its format alone."""
    found = [(name, find_type(str(kind))) for name, kind in table.types.items()]
    columns = [Column(name, kind) for name, kind in found if kind is not None]
    return TableSpec(table.match or "", tuple(columns)) if len(columns) == len(found) > 0 else None


def _check_types(path: Path, ask: Callable[[], object]) -> Iterator[PathProblem]:
    try:
        ask()
    except ConfigProblem as why:
        yield PathProblem(path, "expression", f"{describe_path(path)}: {why.sentence}", why.next_step)


def _check_masked(table: TableView, entry: EntryView, path: Path, made: Expr) -> Iterator[PathProblem]:
    """Refuse a column that would show the values of a column that the target masks."""
    for name in sorted(list_columns(made)):
        rule = {**table.columns, **entry.columns}.get(name, {})
        if "mask" in rule and "mask" not in table.columns.get(name, {}):
            sentence = (
                f"{describe_path(path)} is computed from {quote_name(name)}, but this column is masked by "
                f"{describe_path((*entry.path, 'columns', name))}"
            )
            yield PathProblem(path, "contradiction", sentence, "compute it from other columns, or leave one of the two out")


def _check_partly_sent(entry: EntryView, path: Path, made: Expr) -> Iterator[PathProblem]:
    """See `domain.transform.columns.ColumnTransforms`."""
    said, keys = (entry.row_transforms.get(key, ((), None)) for key in ("partial_updates", "keys"))
    of = list_columns(made) - set(keys[1] if isinstance(keys[1], list) else ())
    if said[1] == "by_column" and isinstance(keys[1], list) and len(of) > 1:
        sentence = (
            f"{describe_path(path)} is computed from several columns, but with 'by_column' one change may lack some of them"
        )
        yield PathProblem(path, "contradiction", sentence, "compute it from one column, or remove 'partial_updates'")
