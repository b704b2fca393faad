"""Queries of projections: read as Spark SQL, judged, and written for an engine."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from sqlglot import ErrorLevel, exp, parse
from sqlglot.errors import ParseError, SqlglotError, TokenError, UnsupportedError

from replicator.domain.projections import Key

from .findings import quoted
from .grouped import NotByGroup, group_keys
from .nearest import did_you_mean

WRITTEN_AS = "spark"
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
OTHERWISE_EACH_TIME = frozenset(
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
class Wrong:
    """What is wrong with a query, at a line of its file (1-based)."""

    line: int
    code: str
    sentence: str
    step: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A query that can be used: its text for the engine; by table that it reads the key of its groups, None where it is read
    whole; and the columns that it names, in lower case, None where it takes all there are."""

    text: str
    keys: Mapping[str, Key | None]
    columns: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Said:
    """What the config says beside the query."""

    engine: str
    inputs: Collection[str]
    """The names of tables that it may read."""
    partition_by: str | None = None
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def read_query(text: str, said: Said) -> tuple[Query | None, list[Wrong]]:
    """The query in a file, or everything that is wrong with it."""
    tree, wrong = _parsed(text)
    if tree is None:
        return None, wrong
    wrong = [*_tables(tree, said), *_functions(tree), *_parameters(tree, said)]
    if wrong:
        return None, wrong
    _fill_in(tree, said)
    dialect = DIALECTS.get(said.engine, said.engine)
    try:
        # All names in quotes: words that mean something differ between engines.
        written = tree.sql(dialect=dialect, identify=True, comments=False, unsupported_level=ErrorLevel.RAISE)
        keys = _keys(tree, said, dialect)
    except UnsupportedError as refused:
        sentence = f"the engine {said.engine!r} cannot run it: {str(refused).strip()}"
        return None, [Wrong(1, "sql_engine", sentence, "write it with other functions")]
    except NotByGroup as mixed:
        sentence = f"the rows of one {said.partition_by!r} cannot be computed alone: {mixed}"
        step = "write the query so that they can, or remove 'partition_by': then every refresh computes everything"
        return None, [Wrong(line_of(mixed.node), "not_by_group", sentence, step)]
    return Query(written, keys, _columns(tree)), []


def line_of(node: exp.Expr) -> int:
    """The line of the first name in a part of a query; 1 where it has none."""
    return min((part.meta["line"] for part in node.find_all(exp.Identifier) if "line" in part.meta), default=1)


def _parsed(text: str) -> tuple[exp.Expr | None, list[Wrong]]:
    try:
        with _quiet():
            trees = [tree for tree in parse(text, dialect=WRITTEN_AS) if tree is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        where = f" near {quoted(near)}" if (near := str(first.get("highlight") or "")) else ""
        sentence = f"is not SQL as Spark writes it: {_why(first)}{where}"
        return None, [Wrong(int(first.get("line") or 1), "sql", sentence)]
    except (TokenError, RecursionError) as error:
        line = text.count("\n") + 1
        why = "is nested too deeply" if isinstance(error, RecursionError) else "a quote or a comment does not end"
        return None, [Wrong(line, "sql", f"is not SQL as Spark writes it: {why}")]
    except SqlglotError:
        return None, [Wrong(1, "sql", "is not SQL as Spark writes it")]
    if len(trees) != 1 or not isinstance(trees[0], exp.Query) or trees[0].args.get("into"):
        return None, [Wrong(1, "sql", "must be one SELECT, and nothing else")]
    return trees[0], []


def _why(error: Mapping[str, object]) -> str:
    return str(error.get("description") or "syntax error").partition(" but got ")[0]


@cache
def _logger() -> logging.Logger:
    return logging.getLogger("sqlglot")


class _quiet:  # noqa: N801 - a context, used like a function
    """Keeps sqlglot from warning of statements that it does not know, which are refused here."""

    def __enter__(self) -> None:
        self._was = _logger().disabled
        _logger().disabled = True

    def __exit__(self, *_: object) -> None:
        _logger().disabled = self._was


def _tables(tree: exp.Expr, said: Said) -> Iterator[Wrong]:
    named = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for cte in tree.find_all(exp.CTE):
        if cte.alias.lower() in said.inputs:
            sentence = f"{quoted(cte.alias)} is an input and a query of WITH"
            yield Wrong(line_of(cte), "sql_table", sentence, "give the query of WITH another name")
    for table in tree.find_all(exp.Table):
        name = ".".join(part.name for part in table.parts) if isinstance(table.this, exp.Identifier) else ""
        if not name:
            sentence = "reads from a function instead of a table"
            yield Wrong(line_of(table), "sql_table", sentence, f"name one of its inputs: {', '.join(said.inputs)}")
        elif name.lower() not in named and name.lower() not in said.inputs:
            hint = did_you_mean(name, said.inputs) or f"its inputs are: {', '.join(said.inputs)}"
            yield Wrong(line_of(table), "unknown_table", f"reads the unknown table {quoted(name)}", hint)


def _functions(tree: exp.Expr) -> Iterator[Wrong]:
    for node in tree.walk():
        anonymous = isinstance(node, exp.Anonymous) and node.name.lower() in OTHERWISE_EACH_TIME
        if anonymous or isinstance(node, CLOCKS):
            name = type(node).sql_names()[0] if isinstance(node, exp.Func) and not anonymous else node.name
            sentence = f"calls {quoted(name.lower())}, which would give another result each time"
            yield Wrong(
                _nearest_line(node), "sql_clock", sentence, "write a parameter, such as :reference_date, and say its value"
            )


def _nearest_line(node: exp.Expr) -> int:
    """Of what is around a part that has no names itself."""
    while node.parent is not None and not any("line" in name.meta for name in node.find_all(exp.Identifier)):
        node = node.parent
    return line_of(node)


def _parameters(tree: exp.Expr, said: Said) -> Iterator[Wrong]:
    asked = {node.name: node for node in tree.find_all(exp.Placeholder, exp.Parameter)}
    for name, node in asked.items():
        if name not in said.parameters:
            hint = did_you_mean(name, said.parameters) or "say its value under 'parameters'"
            yield Wrong(_nearest_line(node), "sql_parameter", f"names the unknown parameter {quoted(name)}", hint)
    for name in said.parameters:
        if name not in asked:
            yield Wrong(1, "sql_parameter", f"does not name the parameter {quoted(name)}", f"write :{name}, or remove it")


def _fill_in(tree: exp.Expr, said: Said) -> None:
    for node in [*tree.find_all(exp.Placeholder, exp.Parameter)]:
        node.replace(exp.convert(said.parameters[node.name]))


def _keys(tree: exp.Expr, said: Said, dialect: str) -> dict[str, Key | None]:
    if said.partition_by is None:
        read = {table.name.lower() for table in tree.find_all(exp.Table)}
        return {name: None for name in said.inputs if name in read}
    found = group_keys(tree, said.partition_by)
    return {name: None if key is None else _key(key, dialect) for name, key in found.items()}


def _key(key: exp.Expr, dialect: str) -> Key:
    return Key(key.sql(dialect=dialect, identify=True), key.name.lower() if isinstance(key, exp.Column) else None)


def _columns(tree: exp.Expr) -> frozenset[str] | None:
    tables = {table.alias_or_name.lower() for table in tree.find_all(exp.Table)}
    selects = [item for select in tree.find_all(exp.Select) for item in select.expressions]
    natural = any(join.args.get("method") for join in tree.find_all(exp.Join))
    names = {node.name.lower() for node in tree.find_all(exp.Identifier)}
    whole = {column.name.lower() for column in tree.find_all(exp.Column)} & tables
    return None if natural or whole or any(item.is_star for item in selects) else frozenset(names)
