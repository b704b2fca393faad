"""The journal of a source: its folder, the options to read it, and the masking of its rows."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.errors import DataLoss
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import ColumnRule, Mask, refuse_change, refuse_unknown_masks
from replicator.ports.adapter_options import ROWS

from ...arrow.masks import mask_values
from ...delta.lake import encode_name
from ..delta_options import DeltaSourceSettings
from .options import CHANGE, VERSION, JournalOptions


def find_journal(options: JournalOptions) -> Path:
    """The folder of the journal."""
    return Path(options.state) / encode_name(options.name)


def make_rows_options(options: JournalOptions) -> DeltaSourceSettings:
    """The options for reading the journal."""
    return DeltaSourceSettings(
        transport="delta",
        format=ROWS,
        path=str(find_journal(options)),
        operation_column=CHANGE,
        sequence_columns=[VERSION],
        masked=tuple(sorted(options.private)),
        batch_records=options.batch_records,
        batch_bytes=options.batch_bytes,
    )


def make_row_masker(options: JournalOptions) -> RowMasker:
    """The masker of rows."""
    return RowMasker(options.name, options.private, options.keys, options.columns)


# Masks, before rows are written.

Noted = Mapping[str, Any]
"""A note of the mask of each column. Equal masks have equal notes; a note reveals neither key nor value."""


class RowMasker:
    """Masks rows of one table. `declared`: columns that may be missing."""

    def __init__(self, table: str, masks: Mapping[str, Mask], keys: Collection[str], declared: Collection[str]) -> None:
        self._table, self._masks, self._keys, self._declared = table, masks, keys, declared

    @property
    def mask_notes(self) -> Noted:
        """The notes to store with the rows."""
        return {name: _to_note(name, mask) for name, mask in sorted(self._masks.items())}

    def mask_rows(self, rows: pa.Table) -> pa.Table:
        """The masked rows. Raises ConfigProblem for a mask that does not fit its column."""
        columns = tuple(Column(field.name, field.type) for field in rows.schema)
        table = TableSpec(self._table, columns, tuple(key for key in self._keys if key in rows.schema.names))
        refuse_unknown_masks(self._masks, table, self._declared)
        for name, mask in self._masks.items():
            if name in table.column_names:
                refuse_change(ColumnRule(mask=mask), table.column(name), table)
                rows = rows.set_column(table.column_names.index(name), name, mask_values(rows[name], mask))
        return rows

    def refuse_others(self, noted: Noted, columns: Collection[str], restart_step: str) -> None:
        """Raise DataLoss if stored rows (with `noted`) have other masks for `columns`. Their values would stay, and
        differ from new values."""
        now = self.mask_notes
        others = sorted(name for name in columns if noted.get(name) != now.get(name))
        if others:
            raise DataLoss(
                f"The stored rows of {self._table} have another mask of {', '.join(map(repr, others))}, or none, than the "
                "configuration has now.",
                next_step=f"{restart_step} Event logs and dead letters stay as they are. Or restore the earlier masks.",
            )


def _to_note(name: str, mask: Mask) -> list[Any]:
    """The note includes an HMAC of the column name, which distinguishes keys."""
    key = mask.key and hmac.new(mask.key, name.encode(), "sha256").hexdigest()
    return [mask.kind, mask.length, mask.text, key or ""]
