"""What `columns` would make of a table and no target can have: names that are taken, casts that there are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from replicator.domain.change import is_of_frames
from replicator.domain.columns import METADATA, Added, Changed, made_twice, refuse_change
from replicator.domain.conditions import columns_of
from replicator.domain.errors import ConfigProblem
from replicator.domain.expr import Cast, Expr, Lit
from replicator.domain.table import TableSpec, is_reserved

from .expression_problems import declared_types
from .expressions import NoExpression, expression
from .findings import Path, Problem, place, quoted
from .types import type_named
from .views import NO_MIRRORS, EntryView, Rule, TableView, View

ADDING = ("metadata", "constant", "expression")
LISTS = ("column_list", "except_column_list")


def remade_problems(config: View, table: TableView) -> Iterator[Problem]:
    """What would stop lanes at their first record."""
    told: set[tuple[Path, str]] = set()
    for entry in table.to or ():
        if config.kind(entry.sink) in NO_MIRRORS:
            continue
        for problem in (*_names(table, entry), *_casts(table, entry)):
            if (problem.path, problem.message) not in told:
                told.add((problem.path, problem.message))
                yield problem


def rules_of(table: TableView, entry: EntryView) -> dict[str, tuple[Path, Rule]]:
    """What is said of each column, and where: of each the entry counts before its table."""
    levels = ((table.path, table.columns), (entry.path, entry.columns))
    return {name: ((*path, "columns", name), rule) for path, rules in levels for name, rule in rules.items()}


def _names(table: TableView, entry: EntryView) -> Iterator[Problem]:
    """Two columns of one name, and names of columns that targets have beside the source's."""
    rules = rules_of(table, entry)
    now = {name: name_now(name, rule) for name, (_, rule) in rules.items()}
    others = [name for name in table.declared or () if name not in rules and is_chosen(entry, name)]
    own = [*others, *(name for name, (_, rule) in rules.items() if not is_added(rule))]
    twice = {name.casefold() for name in made_twice([*filter(None, now.values()), *others], own)}
    for name, (path, rule) in rules.items():
        made = now[name]
        if made and (is_added(rule) or made != name):
            at = (*path, "rename") if made != name else path
            if is_reserved(made) or is_of_frames(made):
                sentence = f"{place(at)} gives a column the name {quoted(made)}, which replicator keeps for itself"
                yield Problem(at, "reserved_name", sentence, "choose another name")
            elif made.casefold() in twice:
                sentence = f"{place(at)} makes another column of the name {quoted(made)}"
                yield Problem(at, "contradiction", sentence, "choose another name")


def name_now(name: str, rule: Rule) -> str:
    """The name that the target has; empty for none."""
    renamed = rule.get("rename")
    return "" if "drop" in rule else renamed if isinstance(renamed, str) else name


def is_added(rule: Rule) -> bool:
    """The column is one beside the source's own."""
    return any(key in rule for key in ADDING)


def is_chosen(entry: EntryView, name: str) -> bool:
    """The lists of columns of the entry have the column."""
    for key in LISTS:
        names = entry.shape.get(key, ((), None))[1]
        if isinstance(names, list):
            return (name in names) == (key == "column_list")
    return True


def _casts(table: TableView, entry: EntryView) -> Iterator[Problem]:
    """Casts that no value of a known type survives."""
    types = declared_types(table)
    for name, (path, rule) in rules_of(table, entry).items():
        into = type_named(rule["cast"]) if isinstance(rule.get("cast"), str) else None
        if into is None:
            continue
        try:
            if not is_added(rule) and types is not None and name in types.column_names:
                refuse_change(Changed(cast=into), _sent(rule, name, types), types)
            elif is_added(rule):
                _refuse_added(name, rule, into, types or TableSpec(table.match or "", ()))
        except ConfigProblem as why:
            at = (*path, "cast")
            yield Problem(at, "cast", f"{place(at)}: {why.sentence}", why.next_step)


def _sent(rule: Rule, name: str, types: TableSpec) -> Any:
    """The column as the cast gets it: masked first."""
    column = types.column(name)
    text = rule.get("mask", "nothing") != "nothing"
    return type(column)(name, pa.string()) if text else column


def _refuse_added(name: str, rule: Rule, into: pa.DataType, table: TableSpec) -> None:
    if rule.get("metadata") in METADATA:
        Added(metadata=rule["metadata"], cast=into).type_in(name, table)
    elif isinstance(rule.get("constant"), str | int | float):
        Added(constant=rule["constant"], cast=into).type_in(name, table)
    made = _known(rule.get("expression"), table)
    if made is not None:
        Added(expression=made, cast=into).type_in(name, table)


def _known(said: object, table: TableSpec) -> Expr | None:
    """The expression, where the type of its value is known; of one that ends in a cast any value of that type stands for
    it."""
    try:
        made = expression(said) if isinstance(said, str) else None
    except NoExpression:
        return None  # Which is said of the value itself.
    if made is None or columns_of(made) <= set(table.column_names):
        return made
    return Cast(Lit(None), made.type) if isinstance(made, Cast) else None
