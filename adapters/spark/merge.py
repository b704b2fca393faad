"""Stage 4 on Spark: the plan's clauses as one MERGE, or an append for a plan without merge keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from delta import exceptions
from delta.tables import DeltaMergeBuilder
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from replicator.domain.policy.plan import ApplyPlan, Clause, Truncate

from ..delta.commits import RECENT, USER_METADATA, Attempt, LostRace, Operation
from ..delta.merge import delete_all
from ..delta.partitions import Partitions
from ..delta.tables import is_clustered, open_table
from ..sql.dialect import SPARK
from ..sql.reconcile import truncate_parts
from ..sql.render import merge_condition, render_expression
from .errors import translate_errors
from .frames import column, quote_name
from .session import LazySession, to_spark_path

APP, VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
METADATA = "spark.databricks.delta.commitInfo.userMetadata"
MARKS = "spark.databricks.delta.merge.deletionVectors.persistent"
CONFLICTS = (
    exceptions.DeltaConcurrentModificationException,
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)
"""Errors of Delta when another writer committed first. In Python, none is a subclass of the first one."""


def make_merge_operation(
    plan: ApplyPlan, rows: DataFrame, truncates: Sequence[Truncate], partitions: Partitions
) -> Operation:
    """Stage 4 for `rows` (types of the table, one row per merge key), which match only rows of `partitions`.

    `truncates`: see `delta.merge.make_merge_operation`.
    """
    if not plan.merge_keys:
        return make_append_operation(rows.select([column(c.name) for c in plan.target]))

    def merge(snapshot: DeltaTable, attempt: Attempt) -> None:
        refuse_changed_table(snapshot, attempt)
        meets = sf.expr(merge_condition(plan, SPARK))
        if not truncates:
            # Spark reads no files of other partitions.
            for name, values in partitions.items():
                meets = meets & sf.col(f"t.{quote_name(name)}").isin(values)
        with commit_session(rows.sparkSession, attempt) as session:
            merger = SparkTable.forPath(session, to_spark_path(attempt.table.uri)).alias("t").merge(rows.alias("s"), meets)
            for clause in plan.clauses:
                merger = _add_clause(merger, clause)
            for truncate in truncates:
                truncated, assignments = truncate_parts(plan, SPARK, truncate)
                if assignments:
                    merger = merger.whenNotMatchedBySourceUpdate(truncated, {**assignments})
                else:
                    merger = merger.whenNotMatchedBySourceDelete(truncated)
            merger.execute()
        confirm_commit(snapshot, attempt)

    return merge


def make_append_operation(rows: DataFrame) -> Operation:
    """An append of `rows`, whose columns the table has. Other columns become null."""
    return lambda snapshot, attempt: _save_rows(rows, "append", {}, snapshot, attempt)


def overwrite_table(rows: DataFrame) -> Operation:
    """Replaces the table's rows and columns by those of `rows`."""

    def overwrite(snapshot: DeltaTable, attempt: Attempt) -> None:
        refuse_changed_table(snapshot, attempt)
        _save_rows(rows, "overwrite", {"overwriteSchema": "true"}, snapshot, attempt)

    return overwrite


def _save_rows(rows: DataFrame, mode: str, options: Mapping[str, str], snapshot: DeltaTable, attempt: Attempt) -> None:
    with commit_session(rows.sparkSession, attempt):
        writer = rows.write.format("delta").mode(mode).options(**options).option("txnAppId", attempt.app)
        writer = writer.option("txnVersion", attempt.commit_number).option("userMetadata", attempt.text)
        writer.save(to_spark_path(attempt.table.uri))
    confirm_commit(snapshot, attempt)


def clear_table(session: LazySession) -> Operation:
    """Deletes every row. delta-rs does it without a job, if it can write the table."""

    def clear(snapshot: DeltaTable, attempt: Attempt) -> None:
        by = delete_where(session) if is_clustered(snapshot) else delete_all
        by(snapshot, attempt)

    return clear


def delete_where(session: LazySession, condition: str | None = None) -> Operation:
    """Deletes the rows for which the condition is true, or every row."""

    def delete(snapshot: DeltaTable, attempt: Attempt) -> None:
        refuse_changed_table(snapshot, attempt)
        with commit_session(session.spark, attempt) as spark:
            SparkTable.forPath(spark, to_spark_path(attempt.table.uri)).delete(condition)
        snapshot.update_incremental()
        # Without rows there is nothing that Spark commits.
        if snapshot.transaction_version(attempt.app) == attempt.commit_number:
            confirm_commit(snapshot, attempt)

    return delete


def remove_key(row: DataFrame) -> Operation:
    """Deletes the rows that equal `row` in its columns, also from the table's files: deletion vectors are not
    used."""

    def remove(snapshot: DeltaTable, attempt: Attempt) -> None:
        refuse_changed_table(snapshot, attempt)
        same = " AND ".join(f"t.{quote_name(name)} = s.{quote_name(name)}" for name in row.columns)
        with commit_session(row.sparkSession, attempt) as session:
            session.conf.set(MARKS, "false")
            merger = SparkTable.forPath(session, to_spark_path(attempt.table.uri)).alias("t").merge(row.alias("s"), same)
            merger.whenMatchedDelete().execute()
        snapshot.update_incremental()
        # Without rows there is nothing that Spark commits.
        if snapshot.transaction_version(attempt.app) == attempt.commit_number:
            confirm_commit(snapshot, attempt)

    return remove


def table_name(uri: str) -> str:
    """The table at delta-rs's `uri`, in a statement."""
    return f"delta.{quote_name(to_spark_path(uri))}"


def refuse_changed_table(snapshot: DeltaTable, attempt: Attempt) -> None:
    """Raises LostRace when the table is not the one that stage 2 read, because Spark would write to the current
    one.

    In an object store a version can change: Spark replaces a commit that another writer made at the same time.
    """
    now = open_table(attempt.table)
    same_version = now.version() == snapshot.version()
    if not same_version or now.transaction_version(attempt.app) != snapshot.transaction_version(attempt.app):
        raise LostRace


def confirm_commit(snapshot: DeltaTable, attempt: Attempt) -> int:
    """Returns the version that the attempt committed. `snapshot` is at the newest one afterwards, which may be
    another's.

    Raises LostRace if there is none: Spark silently skips a transaction version that the table already has.
    """
    snapshot.update_incremental()
    for entry in snapshot.history(RECENT):
        if entry.get(USER_METADATA) == attempt.text:
            return int(entry["version"])
    raise LostRace


@contextmanager
def commit_session(spark: SparkSession, attempt: Attempt) -> Iterator[SparkSession]:
    """A session of its own whose commits have the metadata of `attempt`.

    Settings apply to a whole session, and settings that stay would make its next commits silent no-ops. An
    append has its metadata in options instead. Errors are errors of this program, because a lane retries after
    some.
    """
    session = spark.newSession()
    settings = {APP: attempt.app, VERSION: str(attempt.commit_number), METADATA: attempt.text}
    for name, value in settings.items():
        session.conf.set(name, value)
    with translate_errors(f"writing table {attempt.table.name}"):
        try:
            yield session
        except CONFLICTS as conflict:
            raise LostRace from conflict
        finally:
            for name in settings:
                session.conf.unset(name)


def _add_clause(merger: DeltaMergeBuilder, clause: Clause) -> DeltaMergeBuilder:
    when = render_expression(clause.when, SPARK)
    values: dict[str, str | Column] = {
        SPARK.quote_name(name): render_expression(value, SPARK) for name, value in clause.assign
    }
    match clause.matched, clause.action:
        case True, "delete":
            return merger.whenMatchedDelete(when)
        case True, "update":
            return merger.whenMatchedUpdate(when, values)
        case False, "insert":
            return merger.whenNotMatchedInsert(when, values)
    raise AssertionError(f"a plan cannot {clause.action} rows that are {'' if clause.matched else 'not '}there")
