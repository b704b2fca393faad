"""The format `rows` with a decoder that crashes its process like native code, by a null pointer."""

from __future__ import annotations

import ctypes
import os
import time

import pyarrow as pa

from adapters.decoders.rows import RowsDecoder
from replicator.domain.table import TableSpec

DEADLY = b"deadly"


class KillingRows(RowsDecoder):
    """With `CALM` in the environment it does not crash. `SLOW` is the duration of each call."""

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        time.sleep(float(os.environ.get("SLOW", "0")))
        if "CALM" not in os.environ and any(DEADLY in value for value in raw["value"].to_pylist() if value):
            ctypes.string_at(0)
        return super().decode(raw, table)
