"""Format `rows`, with a decoder that ends the process it runs in as native code does, by a null pointer."""

from __future__ import annotations

import ctypes
import os
import time

import pyarrow as pa

from adapters.decoders.rows import RowsDecoder
from replicator.domain.table import TableSpec

DEADLY = b"deadly"


class KillingRows(RowsDecoder):
    """With `CALM` in the environment it kills nobody; `SLOW` is how long it takes for each call."""

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        time.sleep(float(os.environ.get("SLOW", "0")))
        if "CALM" not in os.environ and any(DEADLY in value for value in raw["value"].to_pylist() if value):
            ctypes.string_at(0)
        return super().decode(raw, table)
