"""Tables of a target and their views: reads them from the catalogue, creates, widens and reshapes them. SQLAlchemy
quotes names and renders types.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import errors
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.schema import CreateColumn
from sqlalchemy.sql.elements import quoted_name

from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.policy.plan import CDC_UNSENT, ApplyPlan, cdc_sequence_columns, end_sequence_columns
from replicator.domain.schema_evolution import SchemaVersion, TargetReshape
from replicator.domain.table import Column

from ..apply.column_versions import COLUMN_VERSIONS
from ..sql.dialect import POSTGRES, text_literal
from ..sql.render import OURS, VIEWS, current_rows_query, find_view
from .connection import PostgresSession
from .errors import translate_error
from .names import MAX_BYTES, escape, quote_name
from .types import AnyType, ColumnConversion, find_conversion, new_type

log = logging.getLogger(__name__)
DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]
FILL = 80
"""Percent of a page that inserts fill in a mirror. Updates within a page took 0.7 of the time (measured)."""

DDL_LOCK = 7_310_579_104_522_119_013
"""Advisory lock under which this program creates objects, because IF NOT EXISTS alone is not safe against races."""


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """A table in the catalogue.

    - `unique`: the unique column sets, including the primary key.
    - `is_table`: neither a view nor a foreign table, so that it can be locked alone.
    """

    columns: dict[str, ReflectedColumn]
    unique: tuple[frozenset[str], ...]
    is_table: bool = True


class Catalogue:
    """DDL and reflection over a connection of their own.

    It is closed after each use. With `keeps_open` only `close` closes it, so that a thousand new tables need
    one connection.
    """

    def __init__(self, session: PostgresSession, *, keeps_open: bool = False) -> None:
        pool: dict[str, Any] = {"pool_size": 1, "pool_pre_ping": True} if keeps_open else {"poolclass": sa.NullPool}
        self._engine = sa.create_engine("postgresql+psycopg://", creator=session.open, **pool)

    def close(self) -> None:
        """Closes the connection. May be called twice; the catalogue can be used again."""
        self._engine.dispose()

    @contextmanager
    def _connect(self, doing: str) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(DDL_LOCK)))
                yield connection
        except sa.exc.DBAPIError as error:
            self.close()  # The session may be the cause.
            if isinstance(error.orig, psycopg.Error):
                raise translate_error(error.orig, doing) from error
            raise

    def prepare_table(
        self,
        schema: str,
        table: str,
        plan: ApplyPlan,
        missing_error: DataLoss | None = None,
        *,
        remark: str | None = None,
        versions: Sequence[SchemaVersion] = (),
    ) -> ExistingTable:
        """The table with every column of `plan.target`: created with the comment `remark`, widened, or
        unchanged.

        - `versions`: new schema versions, for which an existing table is reshaped.
        - `missing_error`: raised instead of creating a table whose rows should exist.

        Raises Fatal when the table is not suitable. The names must have passed `check_table` and
        `check_columns`.
        """
        with self._connect(f"preparing table {schema}.{table}") as connection:
            create_schema(connection, schema)
            is_table = refuse_kind(connection, schema, table, plan)
            existing_table = _reflect(connection, schema, table)
            if existing_table is None and missing_error is not None:
                raise missing_error
            if existing_table is None:
                _create_table(connection, schema, table, plan, remark)
            else:
                end = end_sequence_columns(1)[0] if plan.history is not None else ""
                for reshaping in (v.reshaping for v in versions if v.reshaping):
                    if reshape(connection, schema, table, existing_table.columns, reshaping, end=end):
                        existing_table = _reflect(connection, schema, table) or existing_table
                for column in (c for c in plan.target if c.name not in existing_table.columns):
                    sql_column = _build_table(schema, table, _build_column(column, key=False)).c[column.name]
                    definition = CreateColumn(sql_column).compile(dialect=connection.dialect)
                    relation = escape(quote_name(schema, table))
                    connection.exec_driver_sql(f"ALTER TABLE {relation} ADD COLUMN {definition}")
            reflected = _reflect(connection, schema, table)
        if reflected is None:
            raise Fatal(f"table {schema}.{table} is gone right after it was created", next_step="Start again.")
        _check_table(f"{schema}.{table}", reflected, plan, existed=existing_table is not None)
        return replace(reflected, is_table=is_table)

    def create_own_tables(self, doing: str, statements: Sequence[sa.schema.CreateTable], schema: str) -> None:
        """Creates this program's own tables in `schema` if they do not exist, in one transaction.

        Existing tables are read first, because IF NOT EXISTS needs the right to create even then.
        """
        with self._connect(doing) as connection:
            create_schema(connection, schema)
            existing_names = set(sa.inspect(connection).get_table_names(schema))
            for statement in (s for s in statements if s.element.name not in existing_names):
                connection.execute(statement)

    def read_columns(self, schema: str, table: str) -> dict[str, AnyType] | None:
        """The columns of a table or view with their types, in order; None when it does not exist."""
        with self._connect(f"describing {schema}.{table}") as connection, _ignore_unknown_types():
            inspector = sa.inspect(connection)
            if table not in {*inspector.get_table_names(schema), *inspector.get_view_names(schema)}:
                return None
            return {c["name"]: c["type"] for c in inspector.get_columns(table, schema=schema)}

    def list_tables(self, schema: str) -> list[str]:
        """The names of the tables and views in `schema`."""
        with self._connect(f"listing schema {schema}") as connection:
            inspector = sa.inspect(connection)
            return sorted([*inspector.get_table_names(schema), *inspector.get_view_names(schema)])


def create_schema(connection: sa.Connection, schema: str) -> None:
    """Creates `schema` if it does not exist. IF NOT EXISTS would need the right to create even then."""
    if not sa.inspect(connection).has_schema(schema):
        connection.execute(sa.schema.CreateSchema(quoted_name(schema, quote=True)))


@contextmanager
def _ignore_unknown_types() -> Iterator[None]:
    """SQLAlchemy warns of unknown types; their values are text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sa.exc.SAWarning)
        yield


def _reflect(connection: sa.Connection, schema: str, table: str) -> ExistingTable | None:
    inspector = sa.inspect(connection)
    if not inspector.has_table(table, schema=schema):
        return None
    with _ignore_unknown_types():
        columns = {c["name"]: c for c in inspector.get_columns(table, schema=schema)}
        indexes = inspector.get_indexes(table, schema=schema)
    # An index of some rows finds not every row, and one on an expression (None) finds no key.
    whole = (i for i in indexes if i["unique"] and not i.get("dialect_options", {}).get("postgresql_where"))
    unique = [frozenset(n for n in i["column_names"] if n) for i in whole if None not in i["column_names"]]
    if primary := inspector.get_pk_constraint(table, schema=schema)["constrained_columns"]:
        unique.append(frozenset(primary))
    return ExistingTable(columns, tuple(unique))


def _build_table(schema: str, table: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(quoted_name(table, quote=True), sa.MetaData(), *columns, schema=quoted_name(schema, quote=True))


def _build_column(column: Column, key: bool) -> sa.Column[object]:
    return sa.Column(
        quoted_name(column.name, quote=True), new_type(column), primary_key=key, nullable=not key, autoincrement=False
    )


def _create_table(connection: sa.Connection, schema: str, name: str, plan: ApplyPlan, remark: str | None) -> None:
    table = _build_table(schema, name, *(_build_column(c, c.name in plan.merge_keys) for c in plan.target))
    connection.execute(sa.schema.CreateTable(table))
    if remark is not None:
        table.comment = remark
        connection.execute(sa.schema.SetTableComment(table))
    if plan.merge_keys:
        storage = f"ALTER TABLE {quote_name(schema, name)} SET (fillfactor = {FILL})"
        connection.exec_driver_sql(escape(storage))
    sequence = [n for n in cdc_sequence_columns(plan.table.sequence) if n in table.c]
    if not plan.merge_keys and sequence:
        # The server chooses a free name. SQLAlchemy's has at most 63 characters, which may be more bytes.
        index = f"CREATE INDEX ON {quote_name(schema, name)} ({', '.join(map(quote_name, sequence))})"
        connection.exec_driver_sql(escape(index))


def find_conversions(name: str, table: ExistingTable, plan: ApplyPlan) -> dict[str, ColumnConversion]:
    """The conversion of each column of the plan. Raises Fatal for the first column without a lossless one."""
    out = {}
    for column in plan.target:
        sql_type: AnyType = table.columns[column.name]["type"]
        conversion = find_conversion(column, sql_type)
        if conversion is None:
            type_text = type_name(sql_type) or "of a type unknown to replicator"
            raise Fatal(
                f"column {column.name!r} of table {name} is {type_text}, which cannot take {column.type} without loss",
                next_step=f"Change its type to {new_type(column).compile(DIALECT)}, or write to another table with `into`.",
            )
        out[column.name] = conversion
    return out


def _check_table(name: str, table: ExistingTable, plan: ApplyPlan, existed: bool) -> None:
    for column in plan.target:
        definition = table.columns[column.name]
        always = bool((definition.get("identity") or {"always": False})["always"]) and column.name not in plan.merge_keys
        if definition.get("computed") or always:
            raise Fatal(
                f"column {column.name!r} of table {name} is generated by the database, so it cannot keep the source's value",
                next_step="Drop its generation expression, or SET GENERATED BY DEFAULT for an identity column.",
            )
    if existed and plan.merge_keys and not is_indexed(table, plan):
        log.warning("table %s has no unique index on its key %s: applying will be slow", name, list(plan.merge_keys))


def is_indexed(table: ExistingTable, plan: ApplyPlan) -> bool:
    """True when some of the merge keys are unique, so that an index finds each row."""
    keys = set(plan.merge_keys)
    return any(u and u <= keys for u in table.unique)


# The kind of a target's relation: only some kinds can store a lane's rows.

KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
}
"""Values of pg_class.relkind, except those of tables."""

MERGES_INTO_VIEWS = 170_000
"""The first server version with MERGE into views."""

SELECT_TABLE = sa.text(
    "SELECT c.relkind::text, current_setting('server_version_num')::int, "
    "EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type <> '1') "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relname = :table"
)


def refuse_kind(connection: sa.Connection, schema: str, table: str, plan: ApplyPlan) -> bool:
    """Raises ConfigProblem when the relation with that name cannot store the rows of `plan`. False for a view or a
    foreign table."""
    row = connection.execute(SELECT_TABLE, {"schema": schema, "table": table}).first()
    fault = _describe_fault(*row, merges=bool(plan.merge_keys)) if row else ""
    if fault:
        raise ConfigProblem(
            f"{schema}.{table} {fault}",
            next_step="Write to an ordinary table: give the target another name with `into`, or remove what is in the way.",
        )
    return row is None or row[0] in ("r", "p")


def _describe_fault(kind: str, version: int, has_rules: bool, *, merges: bool) -> str:
    """Append lanes insert, so a view or a rule may accept their rows. All other lanes merge."""
    kinds = {"r", "p"} | ({"v"} if not merges or version >= MERGES_INTO_VIEWS else set()) | (set() if merges else {"f"})
    if kind not in kinds:
        return f"is {KINDS.get(kind, 'no table')}, into which rows cannot be {'merged' if merges else 'inserted'}"
    return "has a rewrite rule, and PostgreSQL merges no rows into such a table" if merges and has_rules else ""


# Columns that the source renames, removes or widens.


def reshape_statements(
    relation: str, types: Mapping[str, AnyType], reshaping: TargetReshape, end: str = ""
) -> Iterator[str]:
    """The rest of `reshaping` for a table (as SQL) whose columns have these `types`.

    A column keeps its type if it is not the one that replicator creates. `end`: for scd2, the column that is
    NULL in open versions.
    """
    column_types = dict(types)
    for column in (quote_name(name) for name in reshaping.emptied if name in column_types):
        is_open = f" AND {quote_name(end)} IS NULL" if end else ""
        yield f"UPDATE {relation} SET {column} = NULL WHERE {column} IS NOT NULL{is_open}"
    renamed: list[tuple[str, str | None]] = []
    for old, new in reshaping.renames:
        if old in column_types and new in reshaping.replaced and column_types.pop(new, None) is not None:
            renamed.append((new, None))
            yield f"ALTER TABLE {relation} DROP COLUMN {quote_name(new)}"
        if old in column_types and new not in column_types:
            column_types[new] = column_types.pop(old)
            renamed.append((old, new))
            yield f"ALTER TABLE {relation} RENAME COLUMN {quote_name(old)} TO {quote_name(new)}"
    for name in reshaping.removals:
        if column_types.pop(name, None) is not None:
            renamed.append((name, None))
            yield f"ALTER TABLE {relation} DROP COLUMN {quote_name(name)}"
    unsent = quote_name(CDC_UNSENT)
    for old_name, new_name in renamed if isinstance(column_types.get(CDC_UNSENT), sa.ARRAY) else ():
        old, new = text_literal(old_name), "NULL" if new_name is None else text_literal(new_name)
        names = f"nullif(array_remove(array_replace({unsent}, {old}, {new}), NULL), '{{}}')"
        yield f"UPDATE {relation} SET {unsent} = {names} WHERE {old} = ANY({unsent})"
    for change in reshaping.types:
        before, after = new_type(change.before), type_name(new_type(change.after))
        if change.name in column_types and type_name(column_types[change.name]) == type_name(before) != after:
            column = quote_name(change.name)
            column_types[change.name] = new_type(change.after)
            values = "NULL" if change.name in reshaping.emptied and not end else column
            yield f"ALTER TABLE {relation} ALTER COLUMN {column} TYPE {after} USING {values}::{after}"


def type_name(kind: AnyType) -> str | None:
    """The type as SQL; None for an unknown type."""
    try:
        return str(kind.compile(dialect=DIALECT))
    except sa.exc.CompileError:
        return None


VERSIONS = f"{COLUMN_VERSIONS}::jsonb"
NEW_NAME = "CASE name WHEN %(old)s THEN %(new)s ELSE name END"
KEPT = "WHERE name <> coalesce(%(new)s, %(old)s)"
RENAME_IN_VERSIONS = f"""
SET {COLUMN_VERSIONS} = jsonb_strip_nulls(jsonb_build_object(
  'deleted', {VERSIONS}->'deleted',
  'older', (SELECT jsonb_object_agg({NEW_NAME}, o.v) FROM jsonb_each({VERSIONS}->'older') AS o(name, v) {KEPT}),
  'unsent', (SELECT jsonb_agg({NEW_NAME}) FROM jsonb_array_elements_text({VERSIONS}->'unsent') AS u(name) {KEPT})))
WHERE {VERSIONS}->'older' ?| ARRAY[%(old)s, %(new)s] OR {VERSIONS}->'unsent' ?| ARRAY[%(old)s, %(new)s]"""
"""Renames or removes (NULL) a column in the texts of `apply.column_versions`."""


def reshape_side_table(cursor: psycopg.Cursor, relation: str, reshaping: TargetReshape) -> None:
    """Renames and removes the same columns in a side table, if it exists. `sinks.postgres.target.ensure_side_table`
    changes its types, and stored side rows keep the values of their time."""
    names = "SELECT attname, atttypid = 'text[]'::regtype FROM pg_attribute "
    names += "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
    columns = cursor.execute(names, (relation,)).fetchall()
    types: dict[str, AnyType] = {name: sa.ARRAY(sa.TEXT) if is_list else sa.types.NullType() for name, is_list in columns}
    for statement in reshape_statements(relation, types, replace(reshaping, emptied=(), types=())):
        cursor.execute(statement.encode(), prepare=False)
    renamed = [*reshaping.renames, *((name, None) for name in reshaping.removals)]
    for old, new in renamed if COLUMN_VERSIONS in types else ():
        cursor.execute(f"UPDATE {relation} {RENAME_IN_VERSIONS}".encode(), {"old": old, "new": new})


def reshape(
    connection: sa.Connection,
    schema: str,
    table: str,
    columns: Mapping[str, Any],
    reshaping: TargetReshape,
    *,
    end: str = "",
) -> bool:
    """Runs the statements; False when there were none. `columns` as SQLAlchemy reflects them.

    The table's view is dropped first, because it depends on the types. `ensure_view` creates it again.
    """
    types = {name: column["type"] for name, column in columns.items()}
    statements = list(reshape_statements(quote_name(schema, table), types, reshaping, end))
    driver: Any = connection.connection.driver_connection
    view = find_own_view(driver.cursor(), schema, table) if statements else None
    if view is not None:
        statements.insert(0, f"DROP VIEW {quote_name(schema, view)}")
    for statement in statements:
        connection.exec_driver_sql(escape(statement))
    return bool(statements)


# Views of the current rows.

REMARK = "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c WHERE c.oid = to_regclass(%s)"


def view_name(plan: ApplyPlan, table: str) -> str | None:
    """The name of the target's view; None when the target has only current rows, or the name would be too long."""
    view = find_view(plan)
    return f"{table}{view}" if view and len(f"{table}{view}".encode()) <= MAX_BYTES else None


def find_own_view(cursor: psycopg.Cursor, schema: str, table: str) -> str | None:
    """The name of the existing view that replicator created for the table."""
    for name in (f"{table}{view}" for view in VIEWS):
        row = cursor.execute(REMARK, (quote_name(schema, name),)).fetchone()
        if row is not None and row[0] == OURS.format(table=table):
            return name
    return None


def render_view(plan: ApplyPlan, schema: str, table: str) -> str | None:
    """The statement that creates or updates the view; None when there is none."""
    name = view_name(plan, table)
    if name is None:
        return None
    relation, select = quote_name(schema, name), current_rows_query(find_view(plan), POSTGRES, quote_name(schema, table))
    remark = text_literal(OURS.format(table=table))
    return f"CREATE OR REPLACE VIEW {relation} AS {select}; COMMENT ON VIEW {relation} IS {remark}"


def ensure_view(cursor: psycopg.Cursor, schema: str, table: str, plan: ApplyPlan) -> None:
    """Creates or updates the view of `view_name`. Another relation with that name stays unchanged."""
    name, make = view_name(plan, table), render_view(plan, schema, table)
    if name is None or make is None:
        return
    row = cursor.execute(REMARK, (quote_name(schema, name),)).fetchone()
    if row is not None and row[0] != OURS.format(table=table):
        log.warning("%s.%s already exists, and is not a view of %s: it stays as it is", schema, name, table)
        return
    if row is not None:
        missing_columns = cursor.execute(
            "SELECT FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped "
            "AND NOT EXISTS (SELECT FROM pg_attribute v WHERE v.attrelid = %s::regclass AND v.attname = a.attname) LIMIT 1",
            (quote_name(schema, table), quote_name(schema, name)),
        )
        if missing_columns.fetchone() is None:
            return  # So the right to create views is not needed.
    try:
        with cursor.connection.transaction():
            cursor.execute(make.encode(), prepare=False)
    except errors.InvalidTableDefinition:
        log.warning(
            "columns of %s.%s were renamed or removed: drop the view %s, and it is created again", schema, table, name
        )
