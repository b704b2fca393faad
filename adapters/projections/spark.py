"""Projections on Spark: rows do not pass through the driver."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import MapType

from replicator.domain.projections import MOST_GROUPS, Groups, Input, Projection, Record, Work

from ..delta.column_names import source_name, stored_name
from ..delta.commits import Attempt
from ..delta.projector import refuse_lacking_keys, repeated_keys
from ..delta.refreshes import RECORD, among, app_of, group_column, next_number, within
from ..delta.types import storable, storage_type
from ..spark.errors import translating
from ..spark.frames import column, from_arrow, quoted, to_arrow
from ..spark.session import split_later
from ..spark.stores import place
from ..spark.table_writer import SparkTableWriter
from ..spark.types import arrow_schema, spark_schema
from ..spark.write import confirm, refuse_moved, saying
from ..sql.dialect import SPARK
from ..sql.projecting import repeated
from .beside import BesideDatabases

SIGN = "_by"
DELETION_VECTORS = "deletionVectors"


class SparkProjector(BesideDatabases):
    """`ports.projector.Projector` on Spark; options as `BesideDatabases`, `spark` and `stores`. Tables are found, and
    made, as by the local one, so that the engines may follow each other. The driver reads inputs in PostgreSQL, and writes
    what goes there."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._session = split_later(options)
        super().__init__(own, SparkTableWriter(self._session))
        for said in self._lakes.values():
            self._session.reaches(said.lake.root, said.storage)

    @staticmethod
    def unreadable(query: str) -> str:  # noqa: ARG004
        """See `ports.projector.Projector.unreadable`: Spark is not started for it."""
        return ""

    def touched(self, projection: Projection, one: Input, since: int, until: int) -> Groups | None:
        """See `ports.projector.Projector.touched`; what has changed in PostgreSQL is not known."""
        if one.sink in self._places:
            return None
        folder = self._folder(one.sink, one.table)
        known = self._versions(folder)
        old, new = known.earlier(since), known.at(until)
        # delta-rs does not say of which files other rows are marked as deleted.
        if old is None or DELETION_VECTORS in old.features | new.features:
            return None
        files = (old.paths - new.paths, new.paths - old.paths)
        if not any(files):
            return frozenset()
        with translating(f"comparing versions of {one.label}"):
            spark = self._own_session()
            sides = [_looked_at(_version(spark, folder.uri, v), one.columns) for v in (since, until)]
            if sides[0].schema != sides[1].schema or any(isinstance(f.dataType, MapType) for f in sides[0].schema):
                return None
            names = [name for name in sides[0].columns if name != FILE]
            signed = [_only(side, only, by) for side, only, by in zip(sides, files, (-1, 1), strict=True)]
            changed = signed[0].unionByName(signed[1]).groupBy(*map(column, names)).agg(sf.sum(SIGN).alias(SIGN))
            changed = changed.where(sf.col(SIGN) != 0)
            if one.key is None:
                return frozenset() if changed.isEmpty() else None
            found = changed.select(sf.expr(one.key.text).alias("_group")).distinct().limit(MOST_GROUPS + 1).collect()
        groups = [row[0] for row in found]
        return frozenset(groups) if self._are_groups(projection, groups) else None

    def _replaced(self, projection: Projection, work: Work, record: Record) -> tuple[int, int]:
        if work.groups == frozenset():
            return self._nothing(projection, record)
        with translating(f"computing projection {projection.name}"):
            rows = self._computed(projection, work.groups, record)
            try:
                number = rows.count()
                _refuse_repeated(rows, projection)
                schema = arrow_schema(rows.schema)
                table = self._ready(projection, schema, work)
                self.looked_up()
                version = self._write(table, rows, projection, work, record)
            finally:
                rows.unpersist()
        self._settle(projection, table, version)
        return version, number

    def _own_session(self) -> SparkSession:
        """A session with tables of its own, whose names are the same in upper and lower case."""
        spark = self._session.spark.newSession()
        spark.conf.set("spark.sql.caseSensitive", "false")
        return spark

    def _in_memory(self, projection: Projection, groups: Groups | None, record: Record) -> pa.Table:
        with translating(f"computing projection {projection.name}"):
            rows = to_arrow(self._asked(projection, groups, record))
        if projection.keys and repeated(rows, projection.keys):
            raise repeated_keys(projection)
        return rows

    def _computed(self, projection: Projection, groups: Groups | None, record: Record) -> DataFrame:
        """The rows of the groups, or all, in the types of the table; kept until they are let go."""
        found = self._asked(projection, groups, record)
        kept = [pa.field(stored_name(f.name), storage_type(f.type)) for f in arrow_schema(found.schema)]
        types = spark_schema(pa.schema(kept))
        wanted = [column(n).cast(f.dataType).alias(f.name) for n, f in zip(found.columns, types, strict=True)]
        return found.select(wanted).persist()

    def _asked(self, projection: Projection, groups: Groups | None, record: Record) -> DataFrame:
        """The rows of the groups, or all, as the query gives them."""
        spark = self._own_session()
        for one in projection.inputs:
            rows = self._offered(spark, one, record)
            if groups is not None and one.key is not None:
                rows = rows.where(within(one.key.text, groups, SPARK))
            rows.createOrReplaceTempView(one.name)
        self._inputs.let_go()
        found = spark.sql(projection.query)
        if groups is not None and projection.partition_by is not None:
            found = found.where(among(projection.partition_by, groups, SPARK))
        refuse_lacking_keys(projection, found.columns)
        return found

    def _offered(self, spark: SparkSession, one: Input, record: Record) -> DataFrame:
        """The rows of an input, in types that a lake has."""
        if one.sink in self._places:
            return from_arrow(spark, storable(self._inputs.rows(one)))
        uri = self._folder(one.sink, one.table).uri
        return _named(_version(spark, uri, record.reads[one.name].version))

    def _write(self, table: DeltaTable, rows: DataFrame, projection: Projection, work: Work, record: Record) -> int:
        folder = self._target_folder(projection)
        said = json.dumps({RECORD: record.to_json(), "attempt": str(uuid4())})
        attempt = Attempt(app_of(projection), next_number(table, projection), said, folder)
        refuse_moved(table, attempt)
        with saying(rows.sparkSession, attempt):
            writer = rows.write.format("delta").mode("overwrite").option("txnAppId", attempt.app)
            writer = writer.option("txnVersion", attempt.version).option("userMetadata", said)
            if work.groups is None:
                writer = writer.option("overwriteSchema", "true")
            else:
                name = group_column(projection, arrow_schema(rows.schema)).name
                writer = writer.option("replaceWhere", among(name, work.groups, SPARK))
            writer.save(place(folder.uri))
        return confirm(table, attempt)


FILE = "_file"


def _version(spark: SparkSession, uri: str, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(place(uri))


def _named(rows: DataFrame) -> DataFrame:
    """The rows, with the names that the source gives its columns."""
    return rows.select([column(name).alias(source_name(name)) for name in rows.columns])


def _looked_at(rows: DataFrame, columns: Collection[str] | None) -> DataFrame:
    """The columns that a query may look at, and the file of each row."""
    names = [name for name in rows.columns if columns is None or source_name(name).lower() in columns]
    chosen = [column(name).alias(source_name(name)) for name in names or rows.columns[:1]]
    return rows.select(*chosen, sf.col("_metadata.file_name").alias(FILE))


def _only(rows: DataFrame, files: Collection[str], sign: int) -> DataFrame:
    """The rows of these files."""
    names = sorted({path.rpartition("/")[2] for path in files})
    return rows.where(sf.col(FILE).isin(names)).drop(FILE).withColumn(SIGN, sf.lit(sign))


def _refuse_repeated(rows: DataFrame, projection: Projection) -> None:
    if not projection.keys:
        return
    names = {source_name(name).lower(): name for name in rows.columns}
    keys = ", ".join(quoted(names[name.lower()]) for name in projection.keys)
    several = rows.selectExpr(f"struct({keys}) AS _key").groupBy("_key").count().where("count > 1")
    if not several.isEmpty():
        raise repeated_keys(projection)
