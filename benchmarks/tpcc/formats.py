"""Changes as records of each format, in the order of their commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.change import RAW, Op

from .debezium import make_debezium_records
from .dts import make_dts_records
from .simulator import RowChange
from .tables import SCHEMA, TABLES

Record = dict[str, Any]
Write = Callable[[Iterable[RowChange]], Iterator[Record]]
TIMES = "%Y-%m-%d %H:%M:%S.%f"
MYSQL = {
    "int32": "int(11)", "int64": "bigint(20)", "string": "varchar(500)", "timestamp[us]": "datetime(6)",
    "timestamp[us, UTC]": "timestamp(6)", "decimal(12,2)": "decimal(12,2)", "decimal(4,4)": "decimal(4,4)",
}  # fmt: skip
CANAL_OPS = {Op.READ: "INSERT", Op.CREATE: "INSERT", Op.UPDATE: "UPDATE", Op.DELETE: "DELETE"}
MAXWELL_OPS = {Op.READ: "bootstrap-insert", Op.CREATE: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}
PER_FILE = 500
"""Rows of a file of DMS."""


def make_raw_frame(format_name: str, changes: Iterable[RowChange]) -> pa.Table:
    """The records of the changes in a format of `FORMATS`."""
    return pa.Table.from_pylist(list(FORMATS[format_name](changes)), RAW)


def to_millis(at: datetime) -> int:
    """Milliseconds since 1970."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _to_text(value: Any) -> str | None:
    if isinstance(value, datetime):
        return value.strftime(TIMES)
    return None if value is None else str(value)


def _make_stream(topic: str, values: Iterable[tuple[Any, datetime]]) -> Iterator[Record]:
    for offset, (value, at) in enumerate(values):
        yield {
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "timestamp": to_millis(at),
            "value": msgspec.json.encode(value),
        }


def make_canal_records(changes: Iterable[RowChange]) -> Iterator[Record]:
    """Canal's flat messages: the rows of one kind that follow each other in a transaction are one message."""

    def messages() -> Iterator[tuple[Any, datetime]]:
        for number, ((_, name, op), found) in enumerate(groupby(changes, lambda c: (c.tx, c.table, c.op)), 1):
            rows, table = list(found), TABLES[name]
            types = {column: MYSQL[said] for column, said in table.columns.items()}
            images = [_to_texts(row.before if op == Op.DELETE else row.after) for row in rows]
            old = [_to_texts(_list_old_values(row)) for row in rows] if op == Op.UPDATE else None
            said = {"data": images, "database": SCHEMA, "es": to_millis(rows[0].at), "id": number, "isDdl": False}
            more = {"mysqlType": types, "old": old, "pkNames": table.keys or None, "sql": "", "table": name}
            yield {**said, **more, "ts": to_millis(rows[0].at) + 7, "type": CANAL_OPS[op]}, rows[0].at

    return _make_stream("canal", messages())


def make_maxwell_records(changes: Iterable[RowChange]) -> Iterator[Record]:
    """Maxwell's messages; decimals are numbers."""

    def messages() -> Iterator[tuple[Any, datetime]]:
        for change in changes:
            said: dict[str, Any] = {"database": SCHEMA, "table": change.table, "type": MAXWELL_OPS[change.op]}
            said |= {"ts": to_millis(change.at) // 1000, "xid": change.tx, "commit": True}
            said["data"] = _to_numbers(change.before if change.op == Op.DELETE else change.after)
            if change.op == Op.UPDATE:
                said["old"] = _to_numbers(_list_old_values(change))
            yield said, change.at

    return _make_stream("maxwell", messages())


def _list_old_values(change: RowChange) -> dict[str, Any]:
    """The columns that an update changed, as they were."""
    after = change.after or {}
    return {name: value for name, value in (change.before or {}).items() if after[name] != value}


def _to_texts(row: Mapping[str, Any] | None) -> dict[str, str | None]:
    return {name: _to_text(value) for name, value in (row or {}).items()}


def _to_numbers(row: Mapping[str, Any] | None) -> dict[str, Any]:
    told = {}
    for name, value in (row or {}).items():
        told[name] = msgspec.Raw(str(value).encode()) if isinstance(value, int | Decimal) else _to_text(value)
    return told


def make_dms_records(changes: Iterable[RowChange]) -> Iterator[Record]:
    """Rows of the files of `make_dms_files`, as their source delivers them: a topic for each table."""
    for name, found in _group_by_table(changes).items():
        loaded = [c for c in found if c.op == Op.READ]
        for line, change in enumerate(loaded, 1):
            kind = [{"name": "dms.kind", "value": b"load"}]
            yield {
                "topic": f"{SCHEMA}.{name}",
                "partition": 0,
                "offset": (1 << 32) + line,
                "headers": kind,
                "value": _make_line(change),
            }
        for at, lines in _make_change_files(found):
            for line, text in enumerate(lines, 1):
                kind = [{"name": "dms.kind", "value": b"cdc"}]
                place = {"topic": f"{SCHEMA}.{name}", "partition": 0, "offset": (at << 21) + line}
                yield {**place, "timestamp": at, "headers": kind, "value": text}


def make_dms_files(changes: Iterable[RowChange]) -> dict[str, bytes]:
    """The files that DMS writes, without headers: by path below the bucket's folder. It writes a change of a key as a delete
    and an insert, for an update has no room for the key before."""
    files: dict[str, bytes] = {}
    for name, found in _group_by_table(changes).items():
        loaded = [_make_line(c) for c in found if c.op == Op.READ]
        files[f"{SCHEMA}/{name}/LOAD00000001.csv"] = b"".join(line + b"\n" for line in loaded)
        for at, lines in _make_change_files(found):
            moment = datetime.fromtimestamp(at // 1000, UTC)
            path = f"{SCHEMA}/{name}/{moment:%Y%m%d-%H%M%S}{at % 1000:03}.csv"
            files[path] = b"".join(line + b"\n" for line in lines)
    return files


def _group_by_table(changes: Iterable[RowChange]) -> dict[str, list[RowChange]]:
    found: dict[str, list[RowChange]] = {}
    for change in changes:
        found.setdefault(change.table, []).append(change)
    return found


def _make_change_files(changes: Sequence[RowChange]) -> Iterator[tuple[int, list[bytes]]]:
    """The time of each file of changes, which grows, and its rows."""
    rest, last = [c for c in changes if c.op != Op.READ], 0
    for start in range(0, len(rest), PER_FILE):
        some = rest[start : start + PER_FILE]
        last = max(last + 1, to_millis(some[0].at))
        yield last, [line for change in some for line in _make_lines(change)]


def _make_lines(change: RowChange) -> list[bytes]:
    keys, after = TABLES[change.table].keys, change.after or {}
    if change.op == Op.UPDATE and any(after[key] != (change.before or {})[key] for key in keys):
        deleted, inserted = change._replace(op=Op.DELETE), change._replace(op=Op.CREATE)
        return [_make_line(deleted), _make_line(inserted)]
    return [_make_line(change)]


def _make_line(change: RowChange) -> bytes:
    row = (change.before if change.op == Op.DELETE else change.after) or {}
    letter = {Op.CREATE: "I", Op.UPDATE: "U", Op.DELETE: "D"}.get(change.op)
    cells = [letter] if letter else []
    return ",".join([*cells, *map(_to_cell, row.values())]).encode()


def _to_cell(value: Any) -> str:
    text = _to_text(value)
    if text is None:
        return ""
    quoted = text == "" or any(c in text for c in '",\r\n')
    return '"' + text.replace('"', '""') + '"' if quoted else text


FORMATS: Mapping[str, Write] = {
    "debezium_json": make_debezium_records,
    "dts_avro": make_dts_records,
    "dms_csv": make_dms_records,
    "canal_json": make_canal_records,
    "maxwell_json": make_maxwell_records,
}
"""By the name that the configuration has for a format."""
