"""Queries of projections: what they read, and the rows that a change affects."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import ErrorLevel, exp, parse
from sqlglot.errors import ParseError, SqlglotError, TokenError, UnsupportedError

from replicator.domain.errors import suggest_name
from replicator.domain.projection import GroupKey

from .document import quote_name

# Queries of projections: read as Spark SQL, judged, and written for an engine.

SOURCE_DIALECT = "spark"
DIALECTS: Mapping[str, str] = {"local": "duckdb", "spark": "spark"}
"""By engine what it reads."""

CLOCKS = (
    exp.CurrentDate,
    exp.CurrentDatetime,
    exp.CurrentTime,
    exp.CurrentTimestamp,
    exp.Localtime,
    exp.Localtimestamp,
    exp.CurrentUser,
    exp.Rand,
    exp.Randn,
    exp.Uuid,
)
NON_DETERMINISTIC = frozenset(
    {
        "now", "curdate", "random", "shuffle", "monotonically_increasing_id", "spark_partition_id", "input_file_name",
        "input_file_block_start", "input_file_block_length", "current_catalog", "current_database", "current_schema",
        "current_timezone", "session_user", "user", "version", "reflect", "java_method", "try_reflect", "gen_random_uuid",
        "uuidv4", "uuidv7", "nextval", "currval", "setseed", "getenv", "getvariable", "get_current_time", "today",
        "get_current_timestamp", "transaction_timestamp",
    }
)  # fmt: skip
"""Functions that sqlglot has no name of its own for."""


@dataclass(frozen=True, slots=True)
class QueryProblem:
    """A problem of a query, at a line of its file (1-based)."""

    line: int
    code: str
    sentence: str
    step: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A valid query: its text for the engine, and by table the key of its groups and its columns. The key is None for a
    table that is read whole. Columns are in lower case, None for all columns."""

    text: str
    keys: Mapping[str, GroupKey | None]
    columns: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class QueryContext:
    """The settings of the config around the query."""

    engine: str
    inputs: Collection[str]
    """The names of tables that it may read."""
    partition_by: str | None = None
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def read_query(text: str, context: QueryContext) -> tuple[Query | None, list[QueryProblem]]:
    """The query in a file, or everything that is wrong with it."""
    tree, wrong = _parse_query(text)
    if tree is None:
        return None, wrong
    wrong = [*_check_tables(tree, context), *_check_values(tree, context)]
    if wrong:
        return None, wrong
    for node in [*tree.find_all(exp.Placeholder, exp.Parameter)]:
        node.replace(exp.convert(context.parameters[node.name]))
    dialect = DIALECTS.get(context.engine, context.engine)
    try:
        # All names in quotes: words that mean something differ between engines.
        written = tree.sql(dialect=dialect, identify=True, comments=False, unsupported_level=ErrorLevel.RAISE)
        keys = _find_keys(tree, context, dialect)
    except UnsupportedError as refused:
        sentence = f"the engine {context.engine!r} cannot run it: {str(refused).strip()}"
        return None, [QueryProblem(1, "sql_engine", sentence, "write it with other functions")]
    except NotPushable as mixed:
        sentence = f"the rows of one {context.partition_by!r} cannot be computed alone: {mixed}"
        step = "change the query so that this is possible, or remove 'partition_by': then every refresh computes everything"
        return None, [QueryProblem(find_line(mixed.node), "not_by_group", sentence, step)]
    # Whole rows are read for `*`, a natural join, and the name of a table as a column.
    selects = [item for select in tree.find_all(exp.Select) for item in select.expressions]
    tables = {table.alias_or_name.lower() for table in tree.find_all(exp.Table)}
    reads_all = (
        any(join.args.get("method") for join in tree.find_all(exp.Join))
        or any(item.is_star for item in selects)
        or any(column.name.lower() in tables for column in tree.find_all(exp.Column))
    )
    names = frozenset(node.name.lower() for node in tree.find_all(exp.Identifier))
    return Query(written, keys, None if reads_all else names), []


def find_line(node: exp.Expr) -> int:
    """The line of the first name in a part of a query; 1 where it has none."""
    return min((part.meta["line"] for part in node.find_all(exp.Identifier) if "line" in part.meta), default=1)


def _parse_query(text: str) -> tuple[exp.Expr | None, list[QueryProblem]]:
    # sqlglot warns of statements that it does not know, which are refused here.
    logger = logging.getLogger("sqlglot")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        trees = [tree for tree in parse(text, dialect=SOURCE_DIALECT) if tree is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        where = f" near {quote_name(near)}" if (near := str(first.get("highlight") or "")) else ""
        why = str(first.get("description") or "syntax error").partition(" but got ")[0]
        sentence = f"is not SQL as Spark writes it: {why}{where}"
        return None, [QueryProblem(int(first.get("line") or 1), "sql", sentence)]
    except (TokenError, RecursionError) as error:
        line = text.count("\n") + 1
        why = "is nested too deeply" if isinstance(error, RecursionError) else "a quote or a comment does not end"
        return None, [QueryProblem(line, "sql", f"is not SQL as Spark writes it: {why}")]
    except SqlglotError:
        return None, [QueryProblem(1, "sql", "is not SQL as Spark writes it")]
    finally:
        logger.disabled = was_disabled
    if len(trees) != 1 or not isinstance(trees[0], exp.Query) or trees[0].args.get("into"):
        return None, [QueryProblem(1, "sql", "must be one SELECT, and nothing else")]
    return trees[0], []


def _check_tables(tree: exp.Expr, context: QueryContext) -> Iterator[QueryProblem]:
    named = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for cte in tree.find_all(exp.CTE):
        if cte.alias.lower() in context.inputs:
            sentence = f"{quote_name(cte.alias)} is an input and a query of WITH"
            yield QueryProblem(find_line(cte), "sql_table", sentence, "give the query of WITH another name")
    for table in tree.find_all(exp.Table):
        name = ".".join(part.name for part in table.parts) if isinstance(table.this, exp.Identifier) else ""
        if not name:
            sentence = "reads from a function instead of a table"
            hint = f"name one of its inputs: {', '.join(context.inputs)}"
            yield QueryProblem(find_line(table), "sql_table", sentence, hint)
        elif name.lower() not in named and name.lower() not in context.inputs:
            hint = suggest_name(name, context.inputs) or f"its inputs are: {', '.join(context.inputs)}"
            yield QueryProblem(find_line(table), "unknown_table", f"reads the unknown table {quote_name(name)}", hint)


def _find_nearest_line(node: exp.Expr) -> int:
    """The line of a node. For a node without names, the line of the nearest node around it."""
    while node.parent is not None and not any("line" in name.meta for name in node.find_all(exp.Identifier)):
        node = node.parent
    return find_line(node)


def _check_values(tree: exp.Expr, context: QueryContext) -> Iterator[QueryProblem]:
    """Functions with another result each time, which a parameter can replace, and parameters without a value or a use."""
    for node in tree.walk():
        anonymous = isinstance(node, exp.Anonymous) and node.name.lower() in NON_DETERMINISTIC
        if anonymous or isinstance(node, CLOCKS):
            name = type(node).sql_names()[0] if isinstance(node, exp.Func) and not anonymous else node.name
            sentence = f"calls {quote_name(name.lower())}, and this function has another result each time"
            step = "write a parameter, such as :reference_date, and its value under 'parameters'"
            yield QueryProblem(_find_nearest_line(node), "sql_clock", sentence, step)
    placeholders = {node.name: node for node in tree.find_all(exp.Placeholder, exp.Parameter)}
    for name, node in placeholders.items():
        if name not in context.parameters:
            hint = suggest_name(name, context.parameters) or "write its value under 'parameters'"
            sentence = f"names the unknown parameter {quote_name(name)}"
            yield QueryProblem(_find_nearest_line(node), "sql_parameter", sentence, hint)
    for name in context.parameters:
        if name not in placeholders:
            sentence = f"does not name the parameter {quote_name(name)}"
            yield QueryProblem(1, "sql_parameter", sentence, f"write :{name}, or remove it")


def _find_keys(tree: exp.Expr, context: QueryContext, dialect: str) -> dict[str, GroupKey | None]:
    if context.partition_by is None:
        read = {table.name.lower() for table in tree.find_all(exp.Table)}
        return {name: None for name in context.inputs if name in read}
    keys: dict[str, GroupKey | None] = {}
    for name, key in find_group_keys(tree, context.partition_by).items():
        column = key.name.lower() if isinstance(key, exp.Column) else None
        keys[name] = None if key is None else GroupKey(key.sql(dialect=dialect, identify=True), column)
    return keys


# Pushes a condition on a column of a query's result down to the tables of the query, as a condition on their columns.
#
# Result rows with some values in that column are then computed from these table rows only. If a clause is not known to allow
# that, the condition stops there: a table that it does not reach is read whole.

TableKey = tuple[str, exp.Expr | None]
"""A table, and what of its columns the value is; None: it is read whole."""

LIMITING_CLAUSES = ("limit", "offset", "fetch", "sample")
UNKNOWN_CLAUSES = ("pivots", "connect", "match", "laterals", "into")
PLAIN_ARGUMENTS = frozenset({"this", "db", "catalog", "alias", "with_"})
"""The arguments that a table or a query in parentheses may have."""
MULTI_GROUP_CLAUSES = ("rollup", "cube", "grouping_sets", "totals")


class NotPushable(Exception):
    """The rows of one value cannot be computed alone: why, and the part of the query that it is about."""

    def __init__(self, sentence: str, node: exp.Expr) -> None:
        super().__init__(sentence)
        self.node = node


@dataclass(frozen=True, slots=True)
class _QueryScope:
    """The queries that names stand for."""

    queries: Mapping[str, tuple[exp.Expr, _QueryScope]]
    seen: set[int]
    """The tables that were met, by their identity."""


def find_group_keys(query: exp.Expr, column: str) -> dict[str, exp.Expr | None]:
    """By table of the query what of its columns is the value of the result's `column`; None for a table that is read whole.
    NotPushable when there is none of the former."""
    by_table: dict[str, list[exp.Expr | None]] = {}
    names = _QueryScope({}, set())
    for table, key in _push_down(query, exp.column(column), names):
        by_table.setdefault(table, []).append(key)
    for missed in query.find_all(exp.Table):
        if id(missed) not in names.seen:
            by_table.setdefault(missed.name.lower(), []).append(None)
    keys: dict[str, exp.Expr | None] = {}
    for table, several in by_table.items():
        texts = {key and key.sql() for key in several}
        keys[table] = several[0] if len(texts) == 1 else None
    if not any(keys.values()):
        raise NotPushable(f"no table of the query is read by {column!r} alone", query)
    return keys


def _push_down(query: exp.Expr, demand: exp.Expr | None, names: _QueryScope) -> list[TableKey]:
    """The tables that a query reads; `demand` is over the columns of its result."""
    names = _add_names(query, demand, names)
    if demand is not None:
        for part in LIMITING_CLAUSES:
            if query.args.get(part):
                raise NotPushable(f"{part.upper()} looks at the rows of all groups", query.args[part])
    if isinstance(query, exp.Subquery):
        if demand is not None:
            _refuse_more(query)
        return _push_down(query.this, demand, names)
    if isinstance(query, exp.SetOperation):
        return _push_into_set_operation(query, demand, names)
    if isinstance(query, exp.Select):
        return _push_into_select(query, demand, names)
    if demand is not None:
        raise NotPushable("this cannot be computed by groups", query)
    return [reached for inner in query.find_all(exp.Table) for reached in _push_into_table(inner, None, names)]


def _add_names(query: exp.Expr, demand: exp.Expr | None, names: _QueryScope) -> _QueryScope:
    clause = query.args.get("with_")
    if clause is None:
        return names
    if clause.args.get("recursive") and demand is not None:
        raise NotPushable("a query that reads itself looks at the rows of all groups", clause)
    for one in clause.expressions:
        names = _QueryScope({**names.queries, one.alias.lower(): (one.this, names)}, names.seen)
    return names


def _push_into_set_operation(query: exp.SetOperation, demand: exp.Expr | None, names: _QueryScope) -> list[TableKey]:
    if demand is None:
        return [*_push_down(query.this, None, names), *_push_down(query.expression, None, names)]
    if any(query.args.get(part) for part in ("by_name", "side", "kind", "on")):
        raise NotPushable("columns of both sides are found by their names here", query)
    left, right = ([name.lower() for name in side.named_selects] for side in (query.this, query.expression))
    if "*" in (*left, *right) or len(left) != len(right):
        raise NotPushable("name the columns on both sides", query)
    moved = demand.copy()
    for column in [*moved.find_all(exp.Column)]:
        if left.count(column.name.lower()) != 1:
            raise NotPushable(f"there is no column {column.name!r}, or two", query)
        column.set("this", exp.to_identifier(right[left.index(column.name.lower())]))
    return [*_push_down(query.this, demand, names), *_push_down(query.expression, moved, names)]


def _push_into_select(query: exp.Select, demand: exp.Expr | None, names: _QueryScope) -> list[TableKey]:
    scope = Scope.from_query(query)
    wanted: Demands = {}
    if demand is not None:
        wanted = _split_demand(scope, demand)
    table_keys = []
    for part in list_own_expressions(query):
        for inner in part.walk(prune=lambda node: isinstance(node, exp.Query)):
            if isinstance(inner, exp.Query):
                table_keys += _push_down(inner, None, names)
    for alias, relation in scope.named.items():
        table_keys += _push_into_relation(relation, wanted.get(alias), names, must=alias == next(iter(wanted), None))
    return table_keys


def _push_into_relation(relation: exp.Expr, demand: exp.Expr | None, names: _QueryScope, *, must: bool) -> list[TableKey]:
    """One table or query after FROM or JOIN. `must`: rather no answer than the whole of it."""
    by = _push_into_table if isinstance(relation, exp.Table) else _push_down
    if demand is None:
        return by(relation, None, names)
    try:
        alias = relation.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise NotPushable("name the columns in the query itself, not after its alias", relation)
        return by(relation, demand, names)
    except NotPushable:
        if must:
            raise
        return by(relation, None, names)


def _push_into_table(table: exp.Expr, demand: exp.Expr | None, names: _QueryScope) -> list[TableKey]:
    if demand is not None:
        _refuse_more(table)
    names.seen.add(id(table))
    if table.name.lower() in names.queries:
        query, outer = names.queries[table.name.lower()]
        return _push_down(query, demand, outer)
    return [(table.name.lower(), demand)]


def _refuse_more(relation: exp.Expr) -> None:
    """Raise NotPushable for other arguments of a table or a query in parentheses, such as a sample or a join."""
    if {name for name, value in relation.args.items() if value} - PLAIN_ARGUMENTS:
        raise NotPushable("this cannot be computed by groups", relation)


def _split_demand(scope: Scope, demand: exp.Expr) -> Demands:
    """The conditions on the relations of a SELECT. The relation with the columns of `demand` is first."""
    query = scope.query
    for part in UNKNOWN_CLAUSES:
        if query.args.get(part):
            raise NotPushable("this cannot be computed by groups", query)
    # The demand over the columns of the query's relations instead of those of its result.
    inner = demand.copy()
    if isinstance(inner, exp.Column):
        inner = _find_column_source(scope, inner.name)
    else:
        for column in [*inner.find_all(exp.Column)]:
            column.replace(exp.paren(_find_column_source(scope, column.name)))
    alias = find_owner(inner, scope)
    if alias is None:
        raise NotPushable(
            f"write {inner.sql(dialect='spark')!r} with its table, as TABLE.COLUMN", _find_line_node(inner, query)
        )
    if alias in scope.may_be_missing:
        raise NotPushable(f"rows of {alias!r} may be missing in an outer join, and then belong to no group", query)
    _refuse_mixed(inner, scope)
    return spread_demands({alias: inner}, scope)


def _find_line_node(node: exp.Expr, otherwise: exp.Expr) -> exp.Expr:
    return node if any("line" in part.meta for part in node.find_all(exp.Identifier)) else otherwise


def _find_column_source(scope: Scope, name: str) -> exp.Expr:
    query = scope.query
    named = [e for e in query.expressions if not e.is_star and e.alias_or_name.lower() == name.lower()]
    stars = [e for e in query.expressions if e.is_star]
    if named and stars:
        raise NotPushable(f"name the columns instead of *, because * may contain {name!r} too", stars[0])
    if len(named) == 1:
        (item,) = named
        expression: exp.Expr = item.unalias()
        for part in expression.walk():
            if isinstance(part, (exp.AggFunc, exp.Window, exp.Query)):
                raise NotPushable(f"column {item.alias_or_name!r} is itself computed from several rows", item)
        aliases = {e.alias.lower() for e in query.expressions if isinstance(e, exp.Alias) and e is not item}
        for column in expression.find_all(exp.Column):
            if not column.table and column.name.lower() in aliases:
                raise NotPushable(f"{column.name!r} may be a column of a table or of this query", column)
        return expression.copy()
    if named or not stars:
        raise NotPushable(f"the query has {'two columns' if named else 'no column'} {name!r}", query)
    if len(stars) > 1 or any(stars[0].find(exp.Star).args.get(part) for part in ("except_", "replace", "rename")):
        raise NotPushable(f"name the column {name!r} instead of *", stars[0])
    table = stars[0].table if isinstance(stars[0], exp.Column) else ""
    if not table and len(scope.named) != 1:
        raise NotPushable(f"name the column {name!r} instead of *", stars[0])
    return exp.column(name, table=table or next(iter(scope.named)))


def _refuse_mixed(inner: exp.Expr, scope: Scope) -> None:
    """Raise NotPushable where one row is computed from rows of several groups."""
    query = scope.query
    distinct = query.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        _refuse_without_demand(inner, distinct.args["on"].expressions, scope, "DISTINCT ON", distinct)
    group = query.args.get("group")
    if group is not None:
        if any(group.args.get(name) for name in MULTI_GROUP_CLAUSES):
            raise NotPushable("totals over several groups are of no group", group)
        _refuse_without_demand(inner, _list_group_expressions(query, group), scope, "GROUP BY", group)
    for part in list_own_expressions(query):
        for node in part.walk(prune=lambda node: isinstance(node, (exp.Query, exp.Window))):
            if isinstance(node, exp.Window):
                windows = [w for w in query.args.get("windows") or () if w.name.lower() == node.alias.lower()]
                parts = [part for one in (node, *windows) for part in one.args.get("partition_by") or ()]
                _refuse_without_demand(inner, parts, scope, "PARTITION BY", node)
            elif isinstance(node, exp.AggFunc) and group is None:
                raise NotPushable("an aggregate without GROUP BY looks at the rows of all groups", node)


def _refuse_without_demand(inner: exp.Expr, among: Iterable[exp.Expr], scope: Scope, clause: str, node: exp.Expr) -> None:
    demanded = {to_canonical_text(one, scope) for one in among}
    columns = {to_canonical_text(column, scope) for column in inner.find_all(exp.Column)}
    if to_canonical_text(inner, scope) not in demanded and not columns <= demanded:
        raise NotPushable(f"{clause} has no {inner.sql(dialect='spark')}", _find_line_node(node, scope.query))


def _list_group_expressions(query: exp.Select, group: exp.Group) -> Iterator[exp.Expr]:
    items: dict[str, exp.Expr] = {e.alias_or_name.lower(): e.unalias() for e in query.expressions}
    if group.args.get("all"):
        yield from (e.unalias() for e in query.expressions if e.find(exp.AggFunc) is None)
    for one in group.expressions:
        yield one
        if isinstance(one, exp.Literal) and not one.is_string and 0 < int(one.name) <= len(query.expressions):
            yield query.expressions[int(one.name) - 1].unalias()
        elif isinstance(one, exp.Column) and not one.table and one.name.lower() in items:
            yield items[one.name.lower()]


# The tables and queries that a SELECT joins, and which of their columns are equal there.

Demands = dict[str, exp.Expr]
"""By relation, the expression of its columns that must equal the value."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A SELECT, and the relations of its FROM and JOIN.

    - `named`: by alias in lower case, in order.
    - `may_be_missing`: those whose rows an outer join may lack.
    """

    query: exp.Select
    named: Mapping[str, exp.Expr]
    joins: tuple[exp.Join, ...]
    may_be_missing: frozenset[str]

    @classmethod
    def from_query(cls, query: exp.Select) -> Scope:
        """The scope of a query."""
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
        return cls(query, named, joins, frozenset(missing))


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
    named = scope.named
    if column.table:
        alias = column.table.lower()
        return alias if alias in named else None
    if len(named) == 1:
        return next(iter(named))
    return _find_using_relation(column.name.lower(), scope)


def _find_using_relation(name: str, scope: Scope) -> str | None:
    """The first relation, if every join has `USING (name)` and no outer join takes the column from another relation."""
    shared = [{part.name.lower() for part in join.args.get("using") or ()} for join in scope.joins]
    plain = all(join.side.upper() in ("", "LEFT") for join in scope.joins)
    return next(iter(scope.named)) if plain and all(name in names for names in shared) else None


def find_owner(expression: exp.Expr, scope: Scope) -> str | None:
    """The alias of the one relation whose columns an expression is made of."""
    owners = {find_relation(column, scope) for column in expression.find_all(exp.Column)}
    return owners.pop() if len(owners) == 1 else None


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
    unwrapped: exp.Expr = wrapped.expressions[0]
    return unwrapped


def spread_demands(demands: Demands, scope: Scope) -> Demands:
    """The demands over each relation's own columns, and those that follow because columns are equal."""
    derived = dict(demands)
    equal = [*_list_equalities(scope)]
    grown = True
    while grown:
        grown = False
        for source, one, target, other in equal:
            if (
                source in derived
                and target not in derived
                and to_canonical_text(derived[source], scope) == to_canonical_text(one, scope)
            ):
                derived[target] = other
                grown = True
    return {alias: to_local(demand) for alias, demand in derived.items()}


Equality = tuple[str, exp.Expr, str, exp.Expr]
"""Rows of the second relation that meet rows of the first have there what those have."""


def _list_equalities(scope: Scope) -> Iterator[Equality]:
    where = scope.query.args.get("where")
    if where is not None:
        yield from _list_condition_equalities(where.this, scope, None, both=True)
    for join in scope.joins:
        added = next(alias for alias, relation in scope.named.items() if relation is join.this)
        if join.args.get("method"):
            continue  # NATURAL and the like: what is equal depends on the columns that there are.
        if (condition := join.args.get("on")) is not None:
            yield from _list_condition_equalities(condition, scope, added, both=False, join=join)
        for name in join.args.get("using") or ():
            first = _find_using_relation(name.name.lower(), scope)
            if first is not None:
                sides = [(alias, exp.column(name.name, table=alias)) for alias in (first, added)]
                yield from _orient_equality(join, sides[0], sides[1])


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


def _orient_equality(join: exp.Join, old: tuple[str, exp.Expr], new: tuple[str, exp.Expr]) -> Iterator[Equality]:
    """A row that an outer join keeps anyway is not chosen by what it meets."""
    side, kind = join.side.upper(), join.kind.upper()
    if side in ("", "LEFT") or kind in ("SEMI", "ANTI"):
        yield (*old, *new)
    if side == "RIGHT" or (side == "" and kind in ("", "INNER", "CROSS")):
        yield (*new, *old)
