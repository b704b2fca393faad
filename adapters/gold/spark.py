"""Projections on Spark. Rows do not pass through the driver."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import MapType

from replicator.domain.projection import MAX_GROUPS, Groups, Projection, ProjectionInput, RefreshRecord, RefreshWork

from ..apply.projections import group_column, refuse_missing_keys, repeated_keys_error
from ..delta.commits import Attempt
from ..delta.tables import source_name, stored_name
from ..delta.types import storage_type, to_storable
from ..spark.errors import translate_errors
from ..spark.frames import column, from_arrow, quote_name, read_version, to_arrow
from ..spark.merge import commit_session, confirm_commit, refuse_changed_table
from ..spark.session import split_options_lazily, to_spark_path
from ..spark.table_writer import SparkTableWriter
from ..spark.types import arrow_schema, spark_schema
from ..sql.dialect import SPARK
from .base_projector import RECORD, BaseProjector, app_id, groups_filter, next_number
from .local import has_repeated_keys

SIGN = "_by"
DELETION_VECTORS = "deletionVectors"


class SparkProjector(BaseProjector):
    """`ports.projector.Projector` on Spark; options of `BaseProjector`, `spark` and `stores`.

    Tables are found and created as by the local projector, so a projection can change between engines. The
    driver reads inputs in PostgreSQL, and writes results for it.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._session = split_options_lazily(options)
        super().__init__(own, SparkTableWriter(self._session))
        for lake_options in self._lakes.values():
            self._session.add_store(lake_options.lake.root, lake_options.storage)

    @staticmethod
    def unreadable(query: str) -> str:  # noqa: ARG004
        """See `ports.projector.Projector.unreadable`. Queries are not parsed, because Spark is not started for
        it."""
        return ""

    def find_affected_groups(self, projection: Projection, one: ProjectionInput, since: int, until: int) -> Groups | None:
        if one.sink not in self._lakes:
            return None
        folder = self._input_folder(one.sink, one.table)
        snapshots = self._snapshots_of(folder)
        old, new = snapshots.get_earlier(since), snapshots.get_version(until)
        # delta-rs does not list files whose deletion vectors changed.
        if old is None or DELETION_VECTORS in old.features | new.features:
            return None
        files = (old.paths - new.paths, new.paths - old.paths)
        if not any(files):
            return frozenset()
        with translate_errors(f"comparing versions of {one.label}"):
            spark = self._own_session()
            sides = [_select_columns(read_version(spark, folder.uri, v), one.columns) for v in (since, until)]
            if sides[0].schema != sides[1].schema or any(isinstance(f.dataType, MapType) for f in sides[0].schema):
                return None
            names = [name for name in sides[0].columns if name != FILE]
            signed = []
            for side, only, sign in zip(sides, files, (-1, 1), strict=True):
                file_names = sorted({path.rpartition("/")[2] for path in only})
                signed.append(side.where(sf.col(FILE).isin(file_names)).drop(FILE).withColumn(SIGN, sf.lit(sign)))
            changed = signed[0].unionByName(signed[1]).groupBy(*map(column, names)).agg(sf.sum(SIGN).alias(SIGN))
            changed = changed.where(sf.col(SIGN) != 0)
            if one.key is None:
                return frozenset() if changed.isEmpty() else None
            rows = changed.select(sf.expr(one.key.text).alias("_group")).distinct().limit(MAX_GROUPS + 1).collect()
        groups = [row[0] for row in rows]
        return frozenset(groups) if self._is_group_type(projection, groups) else None

    def _compute_and_commit(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> tuple[int, int]:
        if work.groups == frozenset():
            return self._commit_record(projection, record)
        with translate_errors(f"computing projection {projection.name}"):
            frame = self._run_query(projection, work.groups, record)
            fields = [pa.field(stored_name(f.name), storage_type(f.type)) for f in arrow_schema(frame.schema)]
            types = spark_schema(pa.schema(fields))
            columns = [column(n).cast(f.dataType).alias(f.name) for n, f in zip(frame.columns, types, strict=True)]
            rows = frame.select(columns).persist()
            try:
                number = rows.count()
                if projection.keys:
                    names = {source_name(name).lower(): name for name in rows.columns}
                    keys = ", ".join(quote_name(names[name.lower()]) for name in projection.keys)
                    several = rows.selectExpr(f"struct({keys}) AS _key").groupBy("_key").count().where("count > 1")
                    if not several.isEmpty():
                        raise repeated_keys_error(projection)
                schema = arrow_schema(rows.schema)
                table = self._prepare_target(projection, schema, work)
                version = self._write_rows(table, rows, projection, work, record)
            finally:
                rows.unpersist()
        self._finish_commit(projection, table, version)
        return version, number

    def _own_session(self) -> SparkSession:
        """A session with its own temporary views, whose names are not case-sensitive."""
        spark = self._session.spark.newSession()
        spark.conf.set("spark.sql.caseSensitive", "false")
        return spark

    def _compute_in_memory(self, projection: Projection, groups: Groups | None, record: RefreshRecord) -> pa.Table:
        with translate_errors(f"computing projection {projection.name}"):
            rows = to_arrow(self._run_query(projection, groups, record))
        if projection.keys and has_repeated_keys(rows, projection.keys):
            raise repeated_keys_error(projection)
        return rows

    def _run_query(self, projection: Projection, groups: Groups | None, record: RefreshRecord) -> DataFrame:
        """The result of the query for the groups, or for all rows."""
        spark = self._own_session()
        for one in projection.inputs:
            if one.name in self._inputs:
                rows = from_arrow(spark, to_storable(self._inputs[one.name].read(one.columns)))
            else:
                uri = self._input_folder(one.sink, one.table).uri
                rows = read_version(spark, uri, record.reads[one.name].version)
                rows = rows.select([column(name).alias(source_name(name)) for name in rows.columns])
            if groups is not None and one.key is not None:
                rows = rows.where(groups_filter(one.key.text, groups, SPARK))
            rows.createOrReplaceTempView(one.name)
        self._opened.close()
        frame = spark.sql(projection.query)
        if groups is not None and projection.partition_by is not None:
            frame = frame.where(groups_filter(SPARK.quote_name(projection.partition_by), groups, SPARK))
        refuse_missing_keys(projection, frame.columns)
        return frame

    def _write_rows(
        self, table: DeltaTable, rows: DataFrame, projection: Projection, work: RefreshWork, record: RefreshRecord
    ) -> int:
        folder = self._target_folder(projection)
        metadata = json.dumps({RECORD: record.to_json(), "attempt": str(uuid4())})
        attempt = Attempt(app_id(projection), next_number(table, projection), metadata, folder)
        refuse_changed_table(table, attempt)
        with commit_session(rows.sparkSession, attempt):
            writer = rows.write.format("delta").mode("overwrite").option("txnAppId", attempt.app)
            writer = writer.option("txnVersion", attempt.commit_number).option("userMetadata", metadata)
            if work.groups is None:
                writer = writer.option("overwriteSchema", "true")
            else:
                name = group_column(projection, arrow_schema(rows.schema)).name
                writer = writer.option("replaceWhere", groups_filter(SPARK.quote_name(name), work.groups, SPARK))
            writer.save(to_spark_path(folder.uri))
        return confirm_commit(table, attempt)


FILE = "_file"


def _select_columns(rows: DataFrame, columns: Collection[str] | None) -> DataFrame:
    """The columns that a query may read, and the file of each row."""
    names = [name for name in rows.columns if columns is None or source_name(name).lower() in columns]
    expressions = [column(name).alias(source_name(name)) for name in names or rows.columns[:1]]
    return rows.select(*expressions, sf.col("_metadata.file_name").alias(FILE))
