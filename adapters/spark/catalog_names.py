"""Names in Spark's catalog for the tables of a lake, and views over them: what they are called, and what makes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from ..sql.dialect import SPARK
from ..sql.views import OURS, VIEWS, current_rows_query

CATALOG = "spark_catalog"
"""The session's own: the only one in which Spark keeps views."""
LONGEST = 200
"""Of a table's name, so that those of its views are not too long for a Hive metastore either."""
_REFUSED = re.compile(r"[^A-Za-z0-9_]|_(?=x[0-9A-Fa-f]{4}|h[0-9a-f]{32}$)")


def catalog_name(table: str) -> str:
    """`table` as Spark's catalog takes it: of letters, digits and underscores.

    Every other character becomes `_xHHHH_`, and so does the underscore of what would read as one. Distinct names stay
    distinct; of a long one the end is a hash of it all.
    """
    whole = _REFUSED.sub(lambda found: f"_x{ord(found[0]):04X}_", table)
    if len(whole) <= LONGEST:
        return whole
    return f"{whole[: LONGEST - 40]}_h{sha256(table.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


@dataclass(frozen=True)
class CatalogTable:
    """One table as it is called in `schema`, with the folder where Spark finds it, and what it says of itself there."""

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
        """What a view over it says of itself."""
        return OURS.format(table=self.name)

    def query(self, view: str) -> str:
        """What the view gives."""
        return current_rows_query(view, SPARK, self.quote_name())

    def create_schema(self) -> str:
        """Makes the schema."""
        return f"CREATE SCHEMA IF NOT EXISTS {SPARK.quote_name(CATALOG)}.{SPARK.quote_name(self.schema)}"

    def create_table(self) -> str:
        """Gives the table that is there its name."""
        remark, place = SPARK.text(self.remark), SPARK.text(self.place)
        return f"CREATE TABLE {self.quote_name()} USING delta COMMENT {remark} LOCATION {place}"

    def create_view(self, view: str) -> str:
        """Makes the view."""
        return f"CREATE VIEW {self.quote_name(view)} COMMENT {SPARK.text(self.view_remark)} AS {self.query(view)}"

    def alter_view(self, view: str) -> str:
        """Brings its columns up to date."""
        return f"ALTER VIEW {self.quote_name(view)} AS {self.query(view)}"

    def stages(self, view: str) -> Mapping[str, str]:
        """For `ports.sink.Explains`."""
        statements = [self.create_schema(), self.create_table(), *([self.create_view(view)] if view else [])]
        return {"names": ";\n\n".join(statements)}


ALL = ("", *VIEWS)
"""Every name that a table may have made for it."""
