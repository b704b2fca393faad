"""Exports of a small table: snapshots as files, and random sequences of snapshots."""

from __future__ import annotations

import gzip
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("id", pa.int64()), ("Part", pa.string()), ("name", pa.string()), ("price", pa.float64())])
Row = tuple[int, str, str | None, float | None]
State = dict[tuple[int, str], Row]


def write_parquet_snapshot(folder: Path, version: int | str, rows: list[Row], schema: pa.Schema = SCHEMA) -> Path:
    """Writes a snapshot into `folder/items`."""
    file = folder / "items" / f"{version}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    pq.write_table(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema), file)
    return file


DECLARED = {"id": "int64", "Part": "string", "name": "string", "price": "double"}
"""The same columns as a configuration declares them."""


def write_text_snapshot(folder: Path, name: str, rows: list[Row], *, age: float = 60.0) -> Path:
    """Writes a snapshot into `folder/items`, `age` seconds old. CSV with a header or JSON Lines, by the ending of the
    name."""
    file = folder / "items" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(_encode_rows(name, rows)) if name.endswith(".gz") else _encode_rows(name, rows))
    then = time.time() - age
    os.utime(file, (then, then))
    return file


def _encode_rows(name: str, rows: list[Row]) -> bytes:
    told = [[("Infinity" if value == float("inf") else value) for value in row] for row in rows]
    if ".jsonl" in name:
        objects = [{n: v for n, v in zip(SCHEMA.names, row, strict=True) if v is not None or n != "name"} for row in told]
        return "".join(json.dumps(one) + "\n" for one in objects).encode()
    lines = [SCHEMA.names, *([_encode_cell(value) for value in row] for row in told)]
    return "\r\n".join(",".join(line) for line in lines).encode()


def _encode_cell(value: object) -> str:
    """Quotes text: an empty text is not NULL."""
    return "" if value is None else str(value) if not isinstance(value, str) or value == "Infinity" else f'"{value}"'


def make_random_snapshots(rng: random.Random, count: int) -> list[list[Row]]:
    """Snapshots of a table. Rows are added, changed, removed, added again or stay. Some snapshots equal the one before."""
    keys = [(i, part) for i in range(3) for part in ("a", "A")]
    state: State = {}
    found = []
    for _ in range(count):
        for key in rng.sample(keys, rng.randrange(len(keys))):
            values = (rng.choice([None, "", "é", "x"]), rng.choice([None, 0.0, 1.5, float("inf")]))
            if rng.random() < 0.3:
                state.pop(key, None)
            else:
                state[key] = (*key, *values)
        rows = list(state.values())
        rng.shuffle(rows)
        found.append(rows)
    return found


def compute_versions(snapshots: list[tuple[int, list[Row]]]) -> list[tuple[Any, ...]]:
    """The expected history, computed from every key in every snapshot. Each version is a row, its first snapshot, and
    the first snapshot without the row or with other values."""
    made: list[tuple[Any, ...]] = []
    keys = {row[:2] for _, rows in snapshots for row in rows}
    for key in keys:
        open_: tuple[Row, int] | None = None
        for version, rows in snapshots:
            now = next((row for row in rows if row[:2] == key), None)
            if open_ is not None and now != open_[0]:
                made.append((*open_[0], open_[1], version))
                open_ = None
            if open_ is None and now is not None:
                open_ = (now, version)
        if open_ is not None:
            made.append((*open_[0], open_[1], None))
    return made
