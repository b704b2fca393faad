"""A folder of files as Kafka Connect's S3 sink writes them, for contract suites."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from support.avro_of_connect import to_avro_schema
from support.rows_folder import write_closed_file

PER_FILE = 4
AVRO = ".avro"
BYTES = {"type": "bytes", "optional": True}
"""The schema of data from a ByteArrayConverter."""
TEXT = {"type": "string"}
HEADERS = {
    "type": "array",
    "items": {"type": "struct", "fields": [{"field": "key", **TEXT}, {"field": "value", **TEXT}]},
}


def format_value(value: bytes | None, *, as_text: bool = False) -> str:
    """A value or key as `JsonFormat` writes it: text becomes a JSON string."""
    text = None if value is None else value.decode()
    return text if text is not None and text.startswith("{") and not as_text else json.dumps(text)


def write_record_files(folder: Path, rows: list[dict[str, Any]], ending: str = ".json") -> None:
    """Writes the files of some records of a partition: values, keys and headers."""
    first = rows[0]
    stem = f"{first['topic']}+{first['partition']}+{first['offset']:010}"
    at = folder / first["topic"] / f"partition={first['partition']}"
    if ending == AVRO:
        pairs = [[{"key": h["name"], "value": h["value"].decode()} for h in row["headers"] or ()] for row in rows]
        write_closed_file(at / f"{stem}.headers{AVRO}", encode_avro(HEADERS, pairs))
        write_closed_file(at / f"{stem}.keys{AVRO}", encode_avro(BYTES, [row["key"] for row in rows], "deflate"))
        write_closed_file(at / f"{stem}{AVRO}", encode_avro(BYTES, [row["value"] for row in rows], "bzip2"))
        return
    headers = [{"headers": [{"key": h["name"], "value": h["value"].decode()} for h in row["headers"] or ()]} for row in rows]
    # Values are written last, so that no reader sees them without keys and headers.
    write_closed_file(at / f"{stem}.headers{ending}", "".join(f"{json.dumps(one)}\n" for one in headers).encode())
    write_closed_file(at / f"{stem}.keys{ending}", "".join(f"{format_value(row['key'])}\n" for row in rows).encode())
    values = [format_value(row["value"], as_text=row["offset"] % 2 == 0) for row in rows]
    write_closed_file(at / f"{stem}{ending}", "".join(f"{value}\n" for value in values).encode())


def encode_parquet(connect: dict[str, Any], table: pa.Table, *, name: str = "parquet.avro.schema") -> bytes:
    """A file as Parquet's Avro writer makes it, with the schema in its footer, and without an Arrow schema."""
    out = io.BytesIO()
    with pq.ParquetWriter(out, table.schema, store_schema=False) as writer:
        writer.write_table(table, row_group_size=2)
        writer.add_key_value_metadata({name: json.dumps(to_avro_schema(connect))})
    return out.getvalue()


def encode_avro(connect: dict[str, Any], values: list[Any], codec: str = "null", block: int = 64_000) -> bytes:
    """A file as AvroFormat makes it, with the schema in its header. The values are in Avro's form."""
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(to_avro_schema(connect)), values, codec, block)
    return out.getvalue()


@dataclass
class SinkFolder:
    """`source_contract.SourceStream`."""

    path: Path
    source: Any
    options: Mapping[str, Any]
    ending: str = ".json"
    topic: str = "shop.items"
    partitions: int = 2

    def publish(self, records: pa.Table) -> None:
        for partition in range(self.partitions):
            rows = [row for row in records.to_pylist() if row["partition"] == partition]
            for start in range(0, len(rows), PER_FILE):
                write_record_files(self.path / "topics", rows[start : start + PER_FILE], self.ending)

    def open(self) -> Any:
        (self.path / "topics").mkdir(exist_ok=True)
        return self.source({"path": str(self.path / "topics"), "files": "connect", **self.options})

    def close(self) -> None:
        pass
