"""The tables and queries that a SELECT joins, and which of their columns are equal there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

Demands = dict[str, exp.Expr]
"""By relation what of its columns is the value that is asked for."""


@dataclass(frozen=True, slots=True)
class Relations:
    """The relations of FROM and JOIN, by alias in lower case, in order, and those whose rows an outer join may lack."""

    named: Mapping[str, exp.Expr]
    joins: tuple[exp.Join, ...]
    may_be_missing: frozenset[str]

    @classmethod
    def from_query(cls, query: exp.Select) -> Relations:
        """The relations of a query."""
        start = query.args.get("from_")
        first = [start.this] if start is not None else []
        joins = tuple(query.args.get("joins") or ())
        named: dict[str, exp.Expr] = {}
        missing: set[str] = set()
        for number, relation in enumerate((*first, *(join.this for join in joins))):
            before = set(named)
            alias = relation.alias_or_name.lower() or f"?{number}"
            named[alias] = relation
            side = joins[number - 1].side.upper() if number else ""
            missing |= before if side in ("RIGHT", "FULL") else set()
            missing |= {alias} if side in ("LEFT", "FULL") else set()
        return cls(named, joins, frozenset(missing))


@dataclass(frozen=True, slots=True)
class Scope:
    """A SELECT with its relations."""

    query: exp.Select
    relations: Relations


def list_own_expressions(query: exp.Select) -> Iterator[exp.Expr]:
    """The expressions of a SELECT, without what follows FROM and JOIN; conditions of joins are among them."""
    for name, value in query.args.items():
        if name in ("from_", "with_", "joins"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, exp.Expr):
                yield part
    yield from (on for join in query.args.get("joins") or () if (on := join.args.get("on")) is not None)


def find_relation(column: exp.Column, scope: Scope) -> str | None:
    """The alias of the relation of a column; None if it is unknown."""
    named = scope.relations.named
    if column.table:
        alias = column.table.lower()
        return alias if alias in named else None
    if len(named) == 1:
        return next(iter(named))
    return _find_using_relation(column.name.lower(), scope.relations)


def _find_using_relation(name: str, relations: Relations) -> str | None:
    """The first relation, if every join has `USING (name)` and no outer join takes the column from another relation."""
    shared = [{part.name.lower() for part in join.args.get("using") or ()} for join in relations.joins]
    plain = all(join.side.upper() in ("", "LEFT") for join in relations.joins)
    return next(iter(relations.named)) if plain and all(name in names for names in shared) else None


def find_owner(expression: exp.Expr, scope: Scope) -> str | None:
    """The alias of the one relation whose columns an expression is made of."""
    found = {find_relation(column, scope) for column in expression.find_all(exp.Column)}
    return found.pop() if len(found) == 1 else None


def to_canonical_text(expression: exp.Expr, scope: Scope) -> str:
    """Text that is the same for expressions that are the same in a SELECT."""
    wrapped = exp.Tuple(expressions=[expression.unnest().copy()])
    for column in [*wrapped.find_all(exp.Column)]:
        alias = find_relation(column, scope) or "?"
        column.replace(exp.column(column.name.lower(), table=alias))
    return wrapped.sql(dialect="spark", comments=False, normalize_functions="upper")


def to_local(expression: exp.Expr) -> exp.Expr:
    """The expression over the columns of its own relation, in lower case."""
    wrapped = exp.Tuple(expressions=[expression.copy()])
    for column in [*wrapped.find_all(exp.Column)]:
        column.replace(exp.column(column.name.lower()))
    found: exp.Expr = wrapped.expressions[0]
    return found


def spread_demands(demands: Demands, scope: Scope) -> Demands:
    """The demands over each relation's own columns, and those that follow because columns are equal."""
    found = dict(demands)
    equal = [*_list_equalities(scope)]
    grown = True
    while grown:
        grown = False
        for source, one, target, other in equal:
            if (
                source in found
                and target not in found
                and to_canonical_text(found[source], scope) == to_canonical_text(one, scope)
            ):
                found[target] = other
                grown = True
    return {alias: to_local(demand) for alias, demand in found.items()}


Equality = tuple[str, exp.Expr, str, exp.Expr]
"""Rows of the second relation that meet rows of the first have there what those have."""


def _list_equalities(scope: Scope) -> Iterator[Equality]:
    where = scope.query.args.get("where")
    if where is not None:
        yield from _list_condition_equalities(where.this, scope, None, both=True)
    for join in scope.relations.joins:
        added = next(alias for alias, relation in scope.relations.named.items() if relation is join.this)
        if join.args.get("method"):
            continue  # NATURAL and the like: what is equal depends on the columns that there are.
        if (condition := join.args.get("on")) is not None:
            yield from _list_condition_equalities(condition, scope, added, both=False, join=join)
        yield from _list_using_equalities(join, scope, added)


def _list_condition_equalities(
    condition: exp.Expr, scope: Scope, added: str | None, *, both: bool, join: exp.Join | None = None
) -> Iterator[Equality]:
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        if not isinstance(part.unnest(), exp.EQ):
            continue
        one, other = part.unnest().this.unnest(), part.unnest().expression.unnest()
        mine, its = find_owner(one, scope), find_owner(other, scope)
        if mine is None or its is None or mine == its:
            continue
        if both:
            yield mine, one, its, other
            yield its, other, mine, one
        elif added in (mine, its) and join is not None:
            new, old = ((mine, one), (its, other)) if mine == added else ((its, other), (mine, one))
            yield from _orient_equality(join, old, new)


def _list_using_equalities(join: exp.Join, scope: Scope, added: str) -> Iterator[Equality]:
    for name in join.args.get("using") or ():
        first = _find_using_relation(name.name.lower(), scope.relations)
        if first is not None:
            sides = [(alias, exp.column(name.name, table=alias)) for alias in (first, added)]
            yield from _orient_equality(join, sides[0], sides[1])


def _orient_equality(join: exp.Join, old: tuple[str, exp.Expr], new: tuple[str, exp.Expr]) -> Iterator[Equality]:
    """A row that an outer join keeps anyway is not chosen by what it meets."""
    side, kind = join.side.upper(), join.kind.upper()
    if side in ("", "LEFT") or kind in ("SEMI", "ANTI"):
        yield (*old, *new)
    if side == "RIGHT" or (side == "" and kind in ("", "INNER", "CROSS")):
        yield (*new, *old)
