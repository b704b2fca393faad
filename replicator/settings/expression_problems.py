"""What is wrong with expressions and conditions, as far as the config alone tells: with types where it declares columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from replicator.domain.conditions import columns_of, computed, refuse_condition
from replicator.domain.errors import ConfigProblem
from replicator.domain.expr import Expr
from replicator.domain.table import Column, TableSpec

from .conditions import condition
from .expressions import NoExpression, expression
from .findings import Path, Problem, place, quoted
from .nearest import did_you_mean
from .types import type_named
from .views import EntryView, Rule, TableView

CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")


def expression_problems(table: TableView) -> Iterator[Problem]:
    """Everything wrong with the expressions of a table."""
    for path, made in _expressions((*table.path, "columns"), table.columns):
        yield from _wrong(table, path, made)
    for entry in table.to or ():
        own = list(_expressions((*entry.path, "columns"), entry.columns))
        for path, made in own:
            yield from _wrong(table, path, made)
        for path, made in (*own, *_expressions((*table.path, "columns"), table.columns)):
            yield from _masked(table, entry, path, made)
            yield from _in_parts(entry, path, made)


def condition_problems(table: TableView, entry: EntryView) -> Iterator[Problem]:
    """Conditions that make no sense for the columns that the config declares, all of which they name."""
    for key in CONDITIONS:
        path, said = entry.shape.get(key, ((), None))
        made = _read(said, condition)
        types = declared_types(table)
        if made is not None and types is not None and columns_of(made) <= set(types.column_names):
            yield from _senseless(path, partial(refuse_condition, made, types, key))


def _expressions(path: Path, rules: dict[str, Rule]) -> Iterator[tuple[Path, Expr]]:
    for name, rule in rules.items():
        made = _read(rule.get("expression"), expression)
        if made is not None:
            yield (*path, name), made


def _read(said: object, reader: Callable[[str], Expr]) -> Expr | None:
    try:
        return reader(said) if isinstance(said, str) else None
    except NoExpression:
        return None  # Which is said of the value itself.


def _wrong(table: TableView, path: Path, made: Expr) -> Iterator[Problem]:
    for name in sorted(columns_of(made) & table.private):
        sentence = f"{place(path)} is made of {quoted(name)}, whose values its table keeps private"
        yield Problem(
            path, "contradiction", sentence, "write the mask or the drop in the 'to' entries, or compute it of others"
        )
    if table.declared is None:
        return
    unknown = sorted(columns_of(made) - set(table.declared))
    for name in unknown:
        sentence = f"{place(path)} names {quoted(name)}, which is {table.unknown}"
        hint = did_you_mean(name, table.declared) or table.known
        yield Problem(path, "unknown_column", sentence, hint)
    types = declared_types(table)
    if types is not None and not unknown:
        yield from _senseless(path, partial(computed, str(path[-1]), made, types))


def declared_types(table: TableView) -> TableSpec | None:
    """The table as the config declares it; None where it does not, or by types of its format alone."""
    found = [(name, type_named(str(kind))) for name, kind in table.types.items()]
    columns = [Column(name, kind) for name, kind in found if kind is not None]
    return TableSpec(table.match or "", tuple(columns)) if len(columns) == len(found) > 0 else None


def _senseless(path: Path, ask: Callable[[], object]) -> Iterator[Problem]:
    try:
        ask()
    except ConfigProblem as why:
        yield Problem(path, "expression", f"{place(path)}: {why.sentence}", why.next_step)


def _masked(table: TableView, entry: EntryView, path: Path, made: Expr) -> Iterator[Problem]:
    """What a target masks is not to be read off another column of it."""
    for name in sorted(columns_of(made)):
        rule = {**table.columns, **entry.columns}.get(name, {})
        if "mask" in rule and "mask" not in table.columns.get(name, {}):
            sentence = f"{place(path)} is made of {quoted(name)}, which {place((*entry.path, 'columns', name))} masks"
            yield Problem(path, "contradiction", sentence, "compute it of other columns, or leave one of the two out")


def _in_parts(entry: EntryView, path: Path, made: Expr) -> Iterator[Problem]:
    """See `domain.columns.Remade`."""
    said, keys = (entry.shape.get(key, ((), None)) for key in ("partial_updates", "keys"))
    of = columns_of(made) - set(keys[1] if isinstance(keys[1], list) else ())
    if said[1] == "by_column" and isinstance(keys[1], list) and len(of) > 1:
        sentence = f"{place(path)} is made of several columns, of which one change need not hold all ('by_column')"
        yield Problem(path, "contradiction", sentence, "compute it of one column, or remove 'partial_updates'")
