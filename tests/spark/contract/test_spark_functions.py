"""Functions for Spark SQL in a notebook, on a real session."""

from __future__ import annotations

import pytest
from support import dts_sales
from support.spark_case import OPTIONS

from adapters.spark.session import open_session
from replicator.notebook import register_functions

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def spark():
    return open_session(OPTIONS["spark"], OPTIONS["stores"])


def test_records_of_dts(spark):
    assert "dts_binlog_parser" in register_functions(spark)
    values = [*dts_sales.make_loaded_messages(), None, b"junk"]
    spark.createDataFrame([(n, v) for n, v in enumerate(values)], "n int, value binary").createOrReplaceTempView("records")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Shanghai")
    try:
        found = spark.sql("SELECT r.* FROM (SELECT n, dts_binlog_parser(value) AS r FROM records) ORDER BY n")
        assert [(f.name, f.dataType.simpleString()) for f in found.schema] == [
            ("recordID", "bigint"), ("source", "string"), ("dbTable", "string"), ("recordType", "string"),
            ("recordTimestamp", "timestamp"), ("extraTags", "string"), ("fields", "string"),
            ("beforeImages", "string"), ("afterImages", "string"),
        ]  # fmt: skip
        shown = found.withColumn("recordTimestamp", found.recordTimestamp.cast("string")).collect()
        assert [tuple(row) for row in shown] == [*dts_sales.PRINTED, (None,) * 9, (None,) * 9]
        spark.conf.set("spark.sql.caseSensitive", "false")
        inlined = spark.sql("SELECT inline(array(dts_binlog_parser(value))) FROM records ORDER BY RECORDID NULLS LAST")
        assert (inlined.columns, inlined.count()) == (found.columns, len(values))
        names = spark.sql("SELECT get_json_object(dts_binlog_parser(value).afterImages, '$.name') AS name FROM records")
        assert [row.name for row in names.collect()][:2] == ["Robert", "Lee"]
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.caseSensitive", "true")
