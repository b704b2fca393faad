"""The private columns of the tables of a source."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from replicator.domain.columns import Changed, Mask, Remade, refuse_unknown_masks
from replicator.domain.table import Column, TableSpec

from ..json.limits import of_table

Masks = Mapping[str, Mask]
NOTHING: Masks = {}
NOWHERE: Mapping[str, Mapping[str, str]] = MappingProxyType({})


class PrivateTables:
    """Per table (exact name or glob) the masks of its columns; a table without is there too. `declared`: the columns that
    tables declare, which their records need not have."""

    def __init__(self, private: Mapping[str, Masks], declared: Mapping[str, Mapping[str, str]] = NOWHERE) -> None:
        self._private, self._declared = private, declared
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
        refuse_unknown_masks(masks, table, of_table(self._declared, table.name) or ())
        known = tuple((name, Changed(mask=mask)) for name, mask in masks.items() if name in table.column_names)
        return Remade(known).of(table) if known else table
