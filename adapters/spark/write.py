"""Stage 4 on Spark: the plan's clauses as one MERGE, or an append for a plan without merge keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from delta import exceptions
from delta.tables import DeltaMergeBuilder
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from replicator.domain.plan import CDC_DELETED, CDC_DELETED_AT, END_AT, ApplyPlan, Clause, Cut, end_sequence_columns

from ..delta.commits import RECENT, Attempt, LostRace, Operation
from ..delta.merge import delete_all
from ..delta.partitions import Partitions
from ..delta.protocol import is_clustered
from ..delta.standings import USER_METADATA
from ..delta.tables import opened
from ..sql.dialect import SPARK
from ..sql.history_events import ended_by
from ..sql.render import expression, merge_condition
from ..sql.repair import cleared, constant
from .errors import translating
from .frames import column, quoted
from .session import Session
from .stores import place

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
"""What Delta raises when somebody else committed first; none of these is a kind of the first in Python."""


def write_stage(
    plan: ApplyPlan,
    rows: DataFrame,
    clear: Cut | None,
    partitions: Partitions,
    cuts: Iterable[Cut] = (),
) -> Operation:
    """What stage 4 does with `rows` (types of the table, one row per merge key), which meet rows of `partitions` alone.
    `clear`, `cuts`: see `delta.merge.write_stage`."""
    cuts = sorted(cuts, key=lambda cut: cut.sequence)
    if not plan.merge_keys:
        return append_stage(rows.select([column(c.name) for c in plan.target]))

    def merge(snapshot: DeltaTable, attempt: Attempt) -> None:
        refuse_moved(snapshot, attempt)
        condition = merge_condition(plan, SPARK)
        meets = sf.expr(condition) if clear is not None or cuts else _within(sf.expr(condition), partitions)
        with saying(rows.sparkSession, attempt) as session:
            merger = SparkTable.forPath(session, place(attempt.table.uri)).alias("t").merge(rows.alias("s"), meets)
            for cut in cuts:
                merger = merger.whenNotMatchedBySourceUpdate(ended_by(plan, SPARK, cut.sequence), _ended(plan, cut))
            _merged(merger, plan, clear)
        confirm(snapshot, attempt)

    return merge


def _ended(plan: ApplyPlan, cut: Cut) -> dict[str, str | Column]:
    """What a truncate writes into a version."""
    names = end_sequence_columns(plan.table.sequence)
    values: dict[str, str | Column] = {SPARK.quoted(n): constant(v, SPARK) for n, v in zip(names, cut.sequence, strict=True)}
    return values | {SPARK.quoted(END_AT): _instant(cut)}


def _instant(cut: Cut) -> str:
    return "NULL" if cut.at is None else f"timestamp_micros({cut.at})"


def append_stage(rows: DataFrame) -> Operation:
    """An append of `rows`, whose columns the table has; others become null."""
    return lambda snapshot, attempt: _saved(rows, "append", {}, snapshot, attempt)


def overwrite_stage(rows: DataFrame) -> Operation:
    """`rows`, and their columns, instead of those of the table."""

    def overwrite(snapshot: DeltaTable, attempt: Attempt) -> None:
        refuse_moved(snapshot, attempt)
        _saved(rows, "overwrite", {"overwriteSchema": "true"}, snapshot, attempt)

    return overwrite


def _saved(rows: DataFrame, mode: str, options: Mapping[str, str], snapshot: DeltaTable, attempt: Attempt) -> None:
    with saying(rows.sparkSession, attempt):
        writer = rows.write.format("delta").mode(mode).options(**options).option("txnAppId", attempt.app)
        writer = writer.option("txnVersion", attempt.version).option("userMetadata", attempt.text)
        writer.save(place(attempt.table.uri))
    confirm(snapshot, attempt)


def clear_stage(session: Session) -> Operation:
    """Removes every row: by delta-rs, which needs no job, where that can write the table."""

    def clear(snapshot: DeltaTable, attempt: Attempt) -> None:
        by = delete_stage(session) if is_clustered(snapshot) else delete_all
        by(snapshot, attempt)

    return clear


def delete_stage(session: Session, condition: str | None = None) -> Operation:
    """Removes the rows for which the condition holds, or every row."""

    def delete(snapshot: DeltaTable, attempt: Attempt) -> None:
        refuse_moved(snapshot, attempt)
        with saying(session.spark, attempt) as spark:
            SparkTable.forPath(spark, place(attempt.table.uri)).delete(condition)
        snapshot.update_incremental()
        # Without rows there is nothing that Spark commits.
        if snapshot.transaction_version(attempt.app) == attempt.version:
            confirm(snapshot, attempt)

    return delete


def remove_key_stage(row: DataFrame) -> Operation:
    """Removes the rows that equal `row` in its columns, out of the files of the table too: none of these is only marked."""

    def remove(snapshot: DeltaTable, attempt: Attempt) -> None:
        refuse_moved(snapshot, attempt)
        same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in row.columns)
        with saying(row.sparkSession, attempt) as session:
            session.conf.set(MARKS, "false")
            merger = SparkTable.forPath(session, place(attempt.table.uri)).alias("t").merge(row.alias("s"), same)
            merger.whenMatchedDelete().execute()
        snapshot.update_incremental()
        # Without rows there is nothing that Spark commits.
        if snapshot.transaction_version(attempt.app) == attempt.version:
            confirm(snapshot, attempt)

    return remove


def table_name(uri: str) -> str:
    """The table at the place that delta-rs calls `uri`, in a statement."""
    return f"delta.{quoted(place(uri))}"


def _within(condition: Column, partitions: Partitions) -> Column:
    """The condition, and that the table's row is in one of the partitions: of others Spark reads no file."""
    for name, values in partitions.items():
        condition = condition & sf.col(f"t.{quoted(name)}").isin(values)
    return condition


def refuse_moved(snapshot: DeltaTable, attempt: Attempt) -> None:
    """Raise LostRace when the table is not what stage 2 read any more: Spark would write to what is there now. In an object
    store a version can also be another one than it was: there Spark replaces what somebody wrote in the same moment."""
    now = opened(attempt.table)
    known = now.version() == snapshot.version()
    if not known or now.transaction_version(attempt.app) != snapshot.transaction_version(attempt.app):
        raise LostRace


def confirm(snapshot: DeltaTable, attempt: Attempt) -> int:
    """Spark skips a version that the table has already, without a word: then somebody else was first. The version that the
    attempt made; `snapshot` is at the newest one, which may be another's."""
    snapshot.update_incremental()
    for entry in snapshot.history(RECENT):
        if entry.get(USER_METADATA) == attempt.text:
            return int(entry["version"])
    raise LostRace


@contextmanager
def saying(spark: SparkSession, attempt: Attempt) -> Iterator[SparkSession]:
    """A session of its own whose commits say what `attempt` says: the settings hold for a whole session, and forgotten ones
    would make its next commits silent no-ops. An append says it by options instead. Errors are the program's own: a lane
    tries again after some."""
    session = spark.newSession()
    settings = {APP: attempt.app, VERSION: str(attempt.version), METADATA: attempt.text}
    for name, value in settings.items():
        session.conf.set(name, value)
    with translating(f"writing table {attempt.table.name}"):
        try:
            yield session
        except CONFLICTS as conflict:
            raise LostRace from conflict
        finally:
            for name in settings:
                session.conf.unset(name)


def _merged(merger: DeltaMergeBuilder, plan: ApplyPlan, clear: Cut | None) -> None:
    for clause in plan.clauses:
        merger = _with_clause(merger, clause)
    if clear is not None and plan.soft_deletes:
        marks: dict[str, str | Column] = {SPARK.quoted(CDC_DELETED): "TRUE", SPARK.quoted(CDC_DELETED_AT): _instant(clear)}
        merger = merger.whenNotMatchedBySourceUpdate(cleared(plan, SPARK, clear.sequence), marks)
    elif clear is not None:
        merger = merger.whenNotMatchedBySourceDelete(cleared(plan, SPARK, clear.sequence))
    merger.execute()


def _with_clause(merger: DeltaMergeBuilder, clause: Clause) -> DeltaMergeBuilder:
    when = expression(clause.when, SPARK)
    values: dict[str, str | Column] = {SPARK.quoted(name): expression(value, SPARK) for name, value in clause.assign}
    match clause.matched, clause.action:
        case True, "delete":
            return merger.whenMatchedDelete(when)
        case True, "update":
            return merger.whenMatchedUpdate(when, values)
        case False, "insert":
            return merger.whenNotMatchedInsert(when, values)
    raise AssertionError(f"a plan cannot {clause.action} rows that are {'' if clause.matched else 'not '}there")
