"""Names in Spark's catalog for the tables of a lake and their views, and the statements that create them.

In a module without Spark, so that the statements can be checked where it does not run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from ..sql.dialect import SPARK
from ..sql.render import OURS, VIEWS, current_rows_query

CATALOG = "spark_catalog"
"""The session catalog, the only one in which Spark stores views."""
LONGEST = 200
"""The maximum length of a table's name, so that its views' names are not too long for a Hive metastore."""
_REFUSED = re.compile(r"[^A-Za-z0-9_]|_(?=x[0-9A-Fa-f]{4}|h[0-9a-f]{32}$)")


def catalog_name(table: str) -> str:
    """`table` as a name in Spark's catalog: letters, digits and underscores.

    Every other character becomes `_xHHHH_`. An underscore that looks like the start of such an escape is
    escaped, too. Distinct names stay distinct. A long name ends with a hash of the whole name.
    """
    whole = _REFUSED.sub(lambda match: f"_x{ord(match[0]):04X}_", table)
    if len(whole) <= LONGEST:
        return whole
    return f"{whole[: LONGEST - 40]}_h{sha256(table.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


@dataclass(frozen=True)
class CatalogTable:
    """A table's name in `schema`, its location for Spark, and its comment."""

    schema: str
    table: str
    place: str
    remark: str

    @property
    def name(self) -> str:
        """Its name in the schema."""
        return catalog_name(self.table)

    def label(self, view: str = "") -> str:
        """The table, or its view, for people."""
        return f"{CATALOG}.{self.schema}.{self.name}{view}"

    def quote_name(self, view: str = "") -> str:
        """The table, or its view, in a statement."""
        return ".".join(map(SPARK.quote_name, (CATALOG, self.schema, f"{self.name}{view}")))

    @property
    def view_remark(self) -> str:
        """The comment of its view."""
        return OURS.format(table=self.name)

    def query(self, view: str) -> str:
        """The query of the view."""
        return current_rows_query(view, SPARK, self.quote_name())

    def create_schema(self) -> str:
        """Creates the schema."""
        return f"CREATE SCHEMA IF NOT EXISTS {SPARK.quote_name(CATALOG)}.{SPARK.quote_name(self.schema)}"

    def create_table(self) -> str:
        """Creates the name of the existing table."""
        remark, location = SPARK.text(self.remark), SPARK.text(self.place)
        return f"CREATE TABLE {self.quote_name()} USING delta COMMENT {remark} LOCATION {location}"

    def create_view(self, view: str) -> str:
        """Creates the view."""
        return f"CREATE VIEW {self.quote_name(view)} COMMENT {SPARK.text(self.view_remark)} AS {self.query(view)}"

    def alter_view(self, view: str) -> str:
        """Updates the view's columns."""
        return f"ALTER VIEW {self.quote_name(view)} AS {self.query(view)}"

    def stages(self, view: str) -> Mapping[str, str]:
        """For `ports.sink.SinkFeatures.explain`."""
        statements = [self.create_schema(), self.create_table(), *([self.create_view(view)] if view else [])]
        return {"names": ";\n\n".join(statements)}


ALL = ("", *VIEWS)
"""The suffixes of all names of a table."""
