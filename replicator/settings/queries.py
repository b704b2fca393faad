"""Queries of projections: read as Spark SQL, judged, and written for an engine."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from sqlglot import ErrorLevel, exp, parse
from sqlglot.errors import ParseError, SqlglotError, TokenError, UnsupportedError

from replicator.domain.errors import suggest_name
from replicator.domain.projection import GroupKey

from .findings import quote_name
from .predicate_pushdown import NotPushable, find_group_keys

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


def read_query(text: str, said: QueryContext) -> tuple[Query | None, list[QueryProblem]]:
    """The query in a file, or everything that is wrong with it."""
    tree, wrong = _parse_query(text)
    if tree is None:
        return None, wrong
    wrong = [*_check_tables(tree, said), *_check_functions(tree), *_check_parameters(tree, said)]
    if wrong:
        return None, wrong
    _fill_parameters(tree, said)
    dialect = DIALECTS.get(said.engine, said.engine)
    try:
        # All names in quotes: words that mean something differ between engines.
        written = tree.sql(dialect=dialect, identify=True, comments=False, unsupported_level=ErrorLevel.RAISE)
        keys = _find_keys(tree, said, dialect)
    except UnsupportedError as refused:
        sentence = f"the engine {said.engine!r} cannot run it: {str(refused).strip()}"
        return None, [QueryProblem(1, "sql_engine", sentence, "write it with other functions")]
    except NotPushable as mixed:
        sentence = f"the rows of one {said.partition_by!r} cannot be computed alone: {mixed}"
        step = "change the query so that this is possible, or remove 'partition_by': then every refresh computes everything"
        return None, [QueryProblem(find_line(mixed.node), "not_by_group", sentence, step)]
    return Query(written, keys, _find_columns(tree)), []


def find_line(node: exp.Expr) -> int:
    """The line of the first name in a part of a query; 1 where it has none."""
    return min((part.meta["line"] for part in node.find_all(exp.Identifier) if "line" in part.meta), default=1)


def _parse_query(text: str) -> tuple[exp.Expr | None, list[QueryProblem]]:
    try:
        with _QuietParser():
            trees = [tree for tree in parse(text, dialect=SOURCE_DIALECT) if tree is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        where = f" near {quote_name(near)}" if (near := str(first.get("highlight") or "")) else ""
        sentence = f"is not SQL as Spark writes it: {_describe_error(first)}{where}"
        return None, [QueryProblem(int(first.get("line") or 1), "sql", sentence)]
    except (TokenError, RecursionError) as error:
        line = text.count("\n") + 1
        why = "is nested too deeply" if isinstance(error, RecursionError) else "a quote or a comment does not end"
        return None, [QueryProblem(line, "sql", f"is not SQL as Spark writes it: {why}")]
    except SqlglotError:
        return None, [QueryProblem(1, "sql", "is not SQL as Spark writes it")]
    if len(trees) != 1 or not isinstance(trees[0], exp.Query) or trees[0].args.get("into"):
        return None, [QueryProblem(1, "sql", "must be one SELECT, and nothing else")]
    return trees[0], []


def _describe_error(error: Mapping[str, object]) -> str:
    return str(error.get("description") or "syntax error").partition(" but got ")[0]


@cache
def _get_logger() -> logging.Logger:
    return logging.getLogger("sqlglot")


class _QuietParser:
    """Keeps sqlglot from warning of statements that it does not know, which are refused here."""

    def __enter__(self) -> None:
        self._was = _get_logger().disabled
        _get_logger().disabled = True

    def __exit__(self, *_: object) -> None:
        _get_logger().disabled = self._was


def _check_tables(tree: exp.Expr, said: QueryContext) -> Iterator[QueryProblem]:
    named = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for cte in tree.find_all(exp.CTE):
        if cte.alias.lower() in said.inputs:
            sentence = f"{quote_name(cte.alias)} is an input and a query of WITH"
            yield QueryProblem(find_line(cte), "sql_table", sentence, "give the query of WITH another name")
    for table in tree.find_all(exp.Table):
        name = ".".join(part.name for part in table.parts) if isinstance(table.this, exp.Identifier) else ""
        if not name:
            sentence = "reads from a function instead of a table"
            yield QueryProblem(find_line(table), "sql_table", sentence, f"name one of its inputs: {', '.join(said.inputs)}")
        elif name.lower() not in named and name.lower() not in said.inputs:
            hint = suggest_name(name, said.inputs) or f"its inputs are: {', '.join(said.inputs)}"
            yield QueryProblem(find_line(table), "unknown_table", f"reads the unknown table {quote_name(name)}", hint)


def _check_functions(tree: exp.Expr) -> Iterator[QueryProblem]:
    for node in tree.walk():
        anonymous = isinstance(node, exp.Anonymous) and node.name.lower() in NON_DETERMINISTIC
        if anonymous or isinstance(node, CLOCKS):
            name = type(node).sql_names()[0] if isinstance(node, exp.Func) and not anonymous else node.name
            sentence = f"calls {quote_name(name.lower())}, and this function has another result each time"
            yield QueryProblem(
                _find_nearest_line(node),
                "sql_clock",
                sentence,
                "write a parameter, such as :reference_date, and its value under 'parameters'",
            )


def _find_nearest_line(node: exp.Expr) -> int:
    """The line of a node. For a node without names, the line of the nearest node around it."""
    while node.parent is not None and not any("line" in name.meta for name in node.find_all(exp.Identifier)):
        node = node.parent
    return find_line(node)


def _check_parameters(tree: exp.Expr, said: QueryContext) -> Iterator[QueryProblem]:
    asked = {node.name: node for node in tree.find_all(exp.Placeholder, exp.Parameter)}
    for name, node in asked.items():
        if name not in said.parameters:
            hint = suggest_name(name, said.parameters) or "write its value under 'parameters'"
            yield QueryProblem(
                _find_nearest_line(node), "sql_parameter", f"names the unknown parameter {quote_name(name)}", hint
            )
    for name in said.parameters:
        if name not in asked:
            yield QueryProblem(
                1, "sql_parameter", f"does not name the parameter {quote_name(name)}", f"write :{name}, or remove it"
            )


def _fill_parameters(tree: exp.Expr, said: QueryContext) -> None:
    for node in [*tree.find_all(exp.Placeholder, exp.Parameter)]:
        node.replace(exp.convert(said.parameters[node.name]))


def _find_keys(tree: exp.Expr, said: QueryContext, dialect: str) -> dict[str, GroupKey | None]:
    if said.partition_by is None:
        read = {table.name.lower() for table in tree.find_all(exp.Table)}
        return {name: None for name in said.inputs if name in read}
    found = find_group_keys(tree, said.partition_by)
    return {name: None if key is None else _make_key(key, dialect) for name, key in found.items()}


def _make_key(key: exp.Expr, dialect: str) -> GroupKey:
    return GroupKey(key.sql(dialect=dialect, identify=True), key.name.lower() if isinstance(key, exp.Column) else None)


def _find_columns(tree: exp.Expr) -> frozenset[str] | None:
    tables = {table.alias_or_name.lower() for table in tree.find_all(exp.Table)}
    selects = [item for select in tree.find_all(exp.Select) for item in select.expressions]
    natural = any(join.args.get("method") for join in tree.find_all(exp.Join))
    names = {node.name.lower() for node in tree.find_all(exp.Identifier)}
    whole = {column.name.lower() for column in tree.find_all(exp.Column)} & tables
    return None if natural or whole or any(item.is_star for item in selects) else frozenset(names)
