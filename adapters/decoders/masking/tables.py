"""The masked columns of a source's tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from types import MappingProxyType

from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms, Mask, refuse_unknown_masks

from ...arrow.record_limits import find_table_entry

Masks = Mapping[str, Mask]
NOTHING: Masks = {}
NOWHERE: Mapping[str, Mapping[str, str]] = MappingProxyType({})


class MaskedTables:
    """For each table (exact name or glob) the masks of its columns; tables without masks are included. `declared`: the
    columns that the configuration declares; records may lack them."""

    def __init__(self, private: Mapping[str, Masks], declared: Mapping[str, Mapping[str, str]] = NOWHERE) -> None:
        self._declared = declared
        self._any = any(private.values())
        self._find = lru_cache(4096)(partial(find_table_entry, private))

    def __bool__(self) -> bool:
        return self._any

    def find_masks(self, table: str) -> Masks | None:
        """The masks of the table's columns; None for a table that is not configured."""
        return self._find(table) if self._any else None

    def get_masks(self, table: str) -> Masks:
        """The masks of the table's columns."""
        return self.find_masks(table) or NOTHING

    def masked_column(self, table: str, column: Column) -> Column:
        """The column as it is in masked records."""
        mask = self.get_masks(table).get(column.name)
        return column if mask is None else Column(column.name, mask.get_masked_type(column.type))

    def masked_spec(self, table: TableSpec) -> TableSpec:
        """The table as decoding returns it. Raises ConfigProblem for a mask that does not fit the column."""
        masks = self.get_masks(table.name)
        refuse_unknown_masks(masks, table, find_table_entry(self._declared, table.name) or ())
        known = tuple((name, ColumnRule(mask=mask)) for name, mask in masks.items() if name in table.column_names)
        return ColumnTransforms(known).apply_to(table) if known else table
