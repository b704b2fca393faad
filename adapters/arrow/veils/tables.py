"""The private columns of the tables of a source."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.domain.columns import Changed, Mask, Remade
from replicator.domain.conditions import unknown_column
from replicator.domain.table import Column, TableSpec

from ..json.limits import of_table

Masks = Mapping[str, Mask]
NOTHING: Masks = {}


class PrivateTables:
    """Per table (exact name or glob) the masks of its columns; a table without is there too."""

    def __init__(self, private: Mapping[str, Masks]) -> None:
        self._private = private
        self._any = any(private.values())

    def __bool__(self) -> bool:
        return self._any

    def said_of(self, table: str) -> Masks | None:
        """The masks of its columns; None of a table of which nothing is said."""
        return of_table(self._private, table) if self._any else None

    def of(self, table: str) -> Masks:
        """The masks of its columns."""
        return self.said_of(table) or NOTHING

    def column(self, table: str, column: Column) -> Column:
        """A column as records have it whose values are masked."""
        mask = self.of(table).get(column.name)
        return column if mask is None else Column(column.name, mask.type_of(column.type))

    def spec(self, table: TableSpec) -> TableSpec:
        """The table as decoding gives it. ConfigProblem for a mask that does not suit it."""
        masks = self.of(table.name)
        for name in masks:
            if name not in table.column_names:
                raise unknown_column(name, table, "columns")
        return Remade(tuple((name, Changed(mask=mask)) for name, mask in masks.items())).of(table) if masks else table
