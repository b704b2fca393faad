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

from .debezium import debezium_records
from .dts import dts_records
from .simulator import Change
from .tables import SCHEMA, TABLES

Record = dict[str, Any]
Write = Callable[[Iterable[Change]], Iterator[Record]]
TIMES = "%Y-%m-%d %H:%M:%S.%f"
MYSQL = {
    "int32": "int(11)", "int64": "bigint(20)", "string": "varchar(500)", "timestamp[us]": "datetime(6)",
    "timestamp[us, UTC]": "timestamp(6)", "decimal(12,2)": "decimal(12,2)", "decimal(4,4)": "decimal(4,4)",
}  # fmt: skip
CANAL_OPS = {Op.READ: "INSERT", Op.CREATE: "INSERT", Op.UPDATE: "UPDATE", Op.DELETE: "DELETE"}
MAXWELL_OPS = {Op.READ: "bootstrap-insert", Op.CREATE: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}
PER_FILE = 500
"""Rows of a file of DMS."""


def raw_frame(format_name: str, changes: Iterable[Change]) -> pa.Table:
    """The records of the changes in a format of `FORMATS`."""
    return pa.Table.from_pylist(list(FORMATS[format_name](changes)), RAW)


def millis(at: datetime) -> int:
    """Milliseconds since 1970."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _text(value: Any) -> str | None:
    if isinstance(value, datetime):
        return value.strftime(TIMES)
    return None if value is None else str(value)


def _stream(topic: str, values: Iterable[tuple[Any, datetime]]) -> Iterator[Record]:
    for offset, (value, at) in enumerate(values):
        yield {
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "timestamp": millis(at),
            "value": msgspec.json.encode(value),
        }


def canal_records(changes: Iterable[Change]) -> Iterator[Record]:
    """Canal's flat messages: the rows of one kind that follow each other in a transaction are one message."""

    def messages() -> Iterator[tuple[Any, datetime]]:
        for number, ((_, name, op), found) in enumerate(groupby(changes, lambda c: (c.tx, c.table, c.op)), 1):
            rows, table = list(found), TABLES[name]
            types = {column: MYSQL[said] for column, said in table.columns.items()}
            images = [_texts(row.before if op == Op.DELETE else row.after) for row in rows]
            old = [_texts(_before(row)) for row in rows] if op == Op.UPDATE else None
            said = {"data": images, "database": SCHEMA, "es": millis(rows[0].at), "id": number, "isDdl": False}
            more = {"mysqlType": types, "old": old, "pkNames": table.keys or None, "sql": "", "table": name}
            yield {**said, **more, "ts": millis(rows[0].at) + 7, "type": CANAL_OPS[op]}, rows[0].at

    return _stream("canal", messages())


def maxwell_records(changes: Iterable[Change]) -> Iterator[Record]:
    """Maxwell's messages; decimals are numbers."""

    def messages() -> Iterator[tuple[Any, datetime]]:
        for change in changes:
            said: dict[str, Any] = {"database": SCHEMA, "table": change.table, "type": MAXWELL_OPS[change.op]}
            said |= {"ts": millis(change.at) // 1000, "xid": change.tx, "commit": True}
            said["data"] = _numbers(change.before if change.op == Op.DELETE else change.after)
            if change.op == Op.UPDATE:
                said["old"] = _numbers(_before(change))
            yield said, change.at

    return _stream("maxwell", messages())


def _before(change: Change) -> dict[str, Any]:
    """The columns that an update changed, as they were."""
    after = change.after or {}
    return {name: value for name, value in (change.before or {}).items() if after[name] != value}


def _texts(row: Mapping[str, Any] | None) -> dict[str, str | None]:
    return {name: _text(value) for name, value in (row or {}).items()}


def _numbers(row: Mapping[str, Any] | None) -> dict[str, Any]:
    told = {}
    for name, value in (row or {}).items():
        told[name] = msgspec.Raw(str(value).encode()) if isinstance(value, int | Decimal) else _text(value)
    return told


def dms_records(changes: Iterable[Change]) -> Iterator[Record]:
    """Rows of the files of `dms_files`, as their source delivers them: a topic for each table."""
    for name, found in _by_table(changes).items():
        loaded = [c for c in found if c.op == Op.READ]
        for line, change in enumerate(loaded, 1):
            kind = [{"name": "dms.kind", "value": b"load"}]
            yield {
                "topic": f"{SCHEMA}.{name}",
                "partition": 0,
                "offset": (1 << 32) + line,
                "headers": kind,
                "value": _line(change),
            }
        for at, lines in _cdc(found):
            for line, text in enumerate(lines, 1):
                kind = [{"name": "dms.kind", "value": b"cdc"}]
                place = {"topic": f"{SCHEMA}.{name}", "partition": 0, "offset": (at << 21) + line}
                yield {**place, "timestamp": at, "headers": kind, "value": text}


def dms_files(changes: Iterable[Change]) -> dict[str, bytes]:
    """The files that DMS writes, without headers: by path below the bucket's folder. It writes a change of a key as a delete
    and an insert, for an update has no room for the key before."""
    files: dict[str, bytes] = {}
    for name, found in _by_table(changes).items():
        loaded = [_line(c) for c in found if c.op == Op.READ]
        files[f"{SCHEMA}/{name}/LOAD00000001.csv"] = b"".join(line + b"\n" for line in loaded)
        for at, lines in _cdc(found):
            moment = datetime.fromtimestamp(at // 1000, UTC)
            path = f"{SCHEMA}/{name}/{moment:%Y%m%d-%H%M%S}{at % 1000:03}.csv"
            files[path] = b"".join(line + b"\n" for line in lines)
    return files


def _by_table(changes: Iterable[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.table, []).append(change)
    return found


def _cdc(changes: Sequence[Change]) -> Iterator[tuple[int, list[bytes]]]:
    """The time of each file of changes, which grows, and its rows."""
    rest, last = [c for c in changes if c.op != Op.READ], 0
    for start in range(0, len(rest), PER_FILE):
        some = rest[start : start + PER_FILE]
        last = max(last + 1, millis(some[0].at))
        yield last, [line for change in some for line in _lines(change)]


def _lines(change: Change) -> list[bytes]:
    keys, after = TABLES[change.table].keys, change.after or {}
    if change.op == Op.UPDATE and any(after[key] != (change.before or {})[key] for key in keys):
        deleted, inserted = change._replace(op=Op.DELETE), change._replace(op=Op.CREATE)
        return [_line(deleted), _line(inserted)]
    return [_line(change)]


def _line(change: Change) -> bytes:
    row = (change.before if change.op == Op.DELETE else change.after) or {}
    letter = {Op.CREATE: "I", Op.UPDATE: "U", Op.DELETE: "D"}.get(change.op)
    cells = [letter] if letter else []
    return ",".join([*cells, *map(_cell, row.values())]).encode()


def _cell(value: Any) -> str:
    text = _text(value)
    if text is None:
        return ""
    quoted = text == "" or any(c in text for c in '",\r\n')
    return '"' + text.replace('"', '""') + '"' if quoted else text


FORMATS: Mapping[str, Write] = {
    "debezium_json": debezium_records,
    "dts_avro": dts_records,
    "dms_csv": dms_records,
    "canal_json": canal_records,
    "maxwell_json": maxwell_records,
}
"""By the name that the configuration has for a format."""
