"""The schema of Spark's catalog in which a lake's tables have names."""

from __future__ import annotations

import pytest

from replicator.settings.schema import to_plain_options

LAKE = "    path: ./lake\n"
SPARK = ["engine=spark"]


@pytest.mark.parametrize("said", ["shop", "spark_catalog.shop"])
def test_schema_is_in_the_catalog_of_the_session(folder, said):
    folder.change(LAKE, f"{LAKE}    schema: {said}\n")
    loaded = folder.load(overrides=SPARK)
    assert to_plain_options(loaded.settings.sinks["lake"])["schema"] == "shop" and not loaded.warnings
    assert [loaded.settings.sinks[name].catalog_of for name in ("lake", "raw", "target")] == ["spark", None, None]


@pytest.mark.parametrize("said", ["main.shop", "my shop", "a-b", "''", "spark_catalog.", "é"])
def test_other_names_are_refused(folder, said):
    line = folder.change(LAKE, f"{LAKE}    schema: {said}\n")
    finding = folder.only(overrides=SPARK)
    assert (finding.code, finding.line) == ("schema", line)
    assert "must be a schema of Spark's own catalog, such as shop or spark_catalog.shop" in finding.message


def test_schema_without_spark_is_a_warning(folder):
    line = folder.change(LAKE, f"{LAKE}    schema: shop\n")
    (finding,) = folder.load().warnings
    assert (finding.code, finding.line) == ("engine", line)
    assert "schema in sink 'lake' needs the engine 'spark'" in finding.message and "--engine spark" in finding.suggestion
