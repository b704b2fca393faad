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
    """Crashes in the methods that `CRASHES_IN` in the environment names: by default `decode`, none if `CALM` is there.

    `SLOW` is the duration of each call of `decode`.
    """

    def route(self, raw: pa.Table) -> pa.Table:
        crash_on_deadly("route", raw)
        return super().route(raw)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        time.sleep(float(os.environ.get("SLOW", "0")))
        crash_on_deadly("decode", raw)
        return super().decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        crash_on_deadly("envelope", raw)
        return super().envelope(raw)

    def mask_records(self, raw: pa.Table) -> pa.Table:
        crash_on_deadly("mask_records", raw)
        return super().mask_records(raw)


def crash_on_deadly(method: str, raw: pa.Table) -> None:
    if method not in os.environ.get("CRASHES_IN", "decode").split() or "CALM" in os.environ:
        return
    if any(DEADLY in value for value in raw["value"].to_pylist() if value):
        ctypes.string_at(0)
