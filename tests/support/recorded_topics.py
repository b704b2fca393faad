"""The recorded topics of Debezium."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from paths import GOLDEN

from replicator.domain.change import RAW

HERE = GOLDEN / "decoders"

TOPICS = sorted((HERE / "debezium").glob("*/*.jsonl"))


def read_recorded_frame(path: Path) -> pa.Table:
    """The raw frame of a recorded topic."""
    rows = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        headers = [{"name": name, "value": value.encode()} for name, value in record["headers"]]
        texts = {k: None if record[k] is None else record[k].encode() for k in ("key", "value")}
        rows.append({**record, **texts, "timestamp": record["timestamp"][1], "headers": headers})
    return pa.Table.from_pylist(rows, schema=RAW)
