"""Changes to a table besides rows, by Spark where delta-rs cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from replicator.domain.errors import Retryable
from replicator.domain.policy.plan import ApplyPlan, DeleteHorizon

from ..delta.commits import Attempt, LostRace, Operation
from ..delta.table_writer import SparkNeeded, TableWriter, TargetColumn, to_hours
from ..delta.tables import CLUSTERED, DELETION_VECTORS, FEATURES, FILE_BYTES, ON, is_clustered, read_schema
from ..sql.dialect import SPARK
from ..sql.reconcile import purged_condition
from .errors import translate_errors
from .frames import column, from_arrow, quote_name, read_version
from .merge import CONFLICTS, delete_where, make_append_operation, overwrite_table, remove_key, table_name
from .session import LazySession, to_spark_path
from .types import spark_schema

CUBE_BYTES = 16 * FILE_BYTES
"""Spark clusters a group of files again while it has fewer bytes, 100 GB by default. Groups are smaller here,
so that one turn of a lane is bounded."""
COMPACTION: Mapping[str, str] = {
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(CUBE_BYTES),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(CUBE_BYTES),
}


class SparkTableWriter(TableWriter):
    """Changes a table by Spark, if delta-rs cannot write it. delta-rs needs no job."""

    features = FEATURES | CLUSTERED

    def __init__(self, session: LazySession) -> None:
        self._session = session

    def add_columns(self, table: DeltaTable, columns: pa.Schema) -> None:
        if not is_clustered(table):
            super().add_columns(table, columns)
            return
        _ = self._session.spark  # toDDL needs the session.
        added_fields = spark_schema(columns)
        if any("timestamp_ntz" in field.dataType.simpleString() for field in added_fields):
            self.set_properties(table, {"delta.feature.timestampNtz": "supported"})
        self._alter_table(table, f"ADD COLUMNS ({added_fields.toDDL()})")

    def set_properties(self, table: DeltaTable, properties: Mapping[str, str]) -> None:
        if is_clustered(table):
            assignments = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
            self._alter_table(table, f"SET TBLPROPERTIES ({assignments})")
        else:
            super().set_properties(table, properties)

    def rewrite(self, table: DeltaTable, columns: Sequence[TargetColumn]) -> None:
        """Done by the executors: rows do not pass through the driver."""
        try:
            with self._change_table(table) as spark:
                rows = read_version(spark, table.table_uri, table.version()).select(_list_values(columns))
                writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
                partitions = table.metadata().partition_columns
                (writer.partitionBy(*partitions) if partitions else writer).save(to_spark_path(table.table_uri))
        except LostRace as lost:
            raise Retryable(f"another writer changed the table at {table.table_uri} first") from lost

    def replace_with(
        self, source: DeltaTable, columns: Sequence[TargetColumn], partitions: Sequence[str] | None = None
    ) -> Operation:
        """For a clustered table by the executors, in one job."""
        by_delta_rs = super().replace_with(source, columns, partitions)

        def replace(snapshot: DeltaTable, attempt: Attempt) -> None:
            if not is_clustered(snapshot):
                by_delta_rs(snapshot, attempt)
                return
            with translate_errors(f"exchanging the rows of table {attempt.table.name}"):
                rows = read_version(self._session.spark, source.table_uri, source.version())
                overwrite_table(rows.select(_list_values(columns)))(snapshot, attempt)

        return replace

    def mark_deletes(self, table: DeltaTable, /) -> bool:
        self._alter_table(table, f"SET TBLPROPERTIES ('{DELETION_VECTORS}' = '{ON}')")
        return True

    def cluster(self, table: DeltaTable, columns: Sequence[str], /) -> bool:
        (detail,) = self._session.spark.sql(f"DESCRIBE DETAIL {table_name(table.table_uri)}").collect()
        if detail["clusteringColumns"] != list(columns):
            self._alter_table(table, f"CLUSTER BY ({', '.join(map(quote_name, columns))})")
        return True

    def commit_nothing(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        if is_clustered(snapshot):
            with translate_errors(f"committing to table {attempt.table.name}"):
                rows = from_arrow(self._session.spark, read_schema(snapshot).empty_table())
                make_append_operation(rows)(snapshot, attempt)
        else:
            super().commit_nothing(snapshot, attempt)

    def remove_purged(self, plan: ApplyPlan, horizon: DeleteHorizon) -> Operation:
        """By Spark, which supports deletion vectors."""
        return delete_where(self._session, purged_condition(plan, SPARK, horizon))

    def remove_key(self, row: pa.Table) -> Operation:
        """Deletion vectors are not enough: the rows would stay in their files."""
        by_delta_rs = super().remove_key(row)

        def remove(snapshot: DeltaTable, attempt: Attempt) -> None:
            marks = snapshot.metadata().configuration.get(DELETION_VECTORS) == ON
            if is_clustered(snapshot) or marks:
                with translate_errors(f"removing a row of table {attempt.table.name}"):
                    remove_key(from_arrow(self._session.spark, row))(snapshot, attempt)
            else:
                by_delta_rs(snapshot, attempt)

        return remove

    def compact(self, table: DeltaTable) -> None:
        """Also clusters."""
        if is_clustered(table):
            with self._change_table(table) as spark:
                for name, value in COMPACTION.items():
                    spark.conf.set(name, value)
                spark.sql(f"OPTIMIZE {table_name(table.table_uri)}")
        else:
            super().compact(table)

    def vacuum(self, table: DeltaTable, retain: float | None, *, dry_run: bool = False) -> int | None:
        """By Spark if delta-rs does not know all files. Spark reports their number only in a dry run."""
        try:
            return super().vacuum(table, retain, dry_run=dry_run)
        except SparkNeeded:
            with self._change_table(table) as spark:
                spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
                keep = "" if retain is None else f" RETAIN {to_hours(retain)} HOURS"
                files = spark.sql(f"VACUUM {table_name(table.table_uri)}{keep}{' DRY RUN' if dry_run else ''}")
                return files.count() if dry_run else None

    def _alter_table(self, table: DeltaTable, change: str) -> None:
        try:
            with self._change_table(table) as spark:
                spark.sql(f"ALTER TABLE {table_name(table.table_uri)} {change}")
        except LostRace as lost:
            raise Retryable(f"another writer changed the table at {table.table_uri} first") from lost

    @contextmanager
    def _change_table(self, table: DeltaTable) -> Iterator[SparkSession]:
        """A session of its own; the snapshot is current afterwards. Raises LostRace when another writer
        committed first."""
        with translate_errors(f"changing the table at {table.table_uri}"):
            try:
                yield self._session.spark.newSession()
            except CONFLICTS as conflict:
                raise LostRace from conflict
        table.update_incremental()


def _list_values(columns: Sequence[TargetColumn]) -> list[Column]:
    """The new columns of a table; needs the session."""
    types = spark_schema(pa.schema([target.field for target in columns]))
    return [_column_values(k).cast(f.dataType).alias(f.name) for k, f in zip(columns, types, strict=True)]


def _column_values(target: TargetColumn) -> Column:
    """The values of a rewritten column."""
    if target.renamed:
        names = sf.create_map(*(sf.lit(name) for pair in target.renamed.items() for name in pair))
        new = sf.transform(
            column(target.old_name), lambda old: sf.when(sf.map_contains_key(names, old), names[old]).otherwise(old)
        )
        listed = sf.filter(new, lambda name: name.isNotNull())
        return sf.when(sf.size(listed) > 0, listed)
    if not target.emptied:
        return column(target.old_name)
    return sf.when(column(target.while_null).isNotNull(), column(target.old_name)) if target.while_null else sf.lit(None)
