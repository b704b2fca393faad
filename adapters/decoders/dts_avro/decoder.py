"""What records of DTS say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode

from ...arrow.json.faults import Unfit
from ...arrow.json.limits import Limits
from ...arrow.messages.decoder import MessageDecoder
from ...arrow.messages.message import Change, Form, Message, micros
from .avro import record_of
from .rows import Image, ImageRows, written
from .types import arrow_of, name_of
from .values import NONE, NULL

OPS = {"INSERT": Op.CREATE, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE, "INIT": Op.READ}
STATEMENT = "schema change"
IGNORED = {
    "DDL": STATEMENT,
    **dict.fromkeys(("BEGIN", "COMMIT", "ROLLBACK", "ABORT"), "transaction"),
    "HEARTBEAT": "heartbeat",
    **dict.fromkeys(("CHECKPOINT", "CONTROL", "FINISH", "NOOP"), "control"),
}
HIDDEN_KEY = "__#alibaba_rds_row_id#__"
"""The column that RDS gives to tables without a primary key."""
INIT, STREAM = 0, 1
DOT = "\\u002E"
"""A dot that is part of a name, in the names of objects."""
_keys = msgspec.json.Decoder(dict[str, tuple[str, ...]]).decode


class Dts(Form):
    """`messages.message.Form` of DTS."""

    name, connector, ordered = "dts_avro", "dts", 2

    def read(self, value: bytes, limits: Limits) -> Message:
        """See `Form.read`."""
        said = record_of(value, limits)
        kind = said["operation"]
        database, table = _object(said)
        common: dict[str, Any] = {
            "table": table,
            "db": database,
            "at": micros(said["sourceTimestamp"], 1_000_000),
            "tx": said["sourceTxid"] if said["sourceTxid"] not in ("", "0") else None,
            "order": (INIT if kind == "INIT" else STREAM, said["id"]),
        }
        if said["id"] < 0:
            raise Unfit(RejectCode.NO_SEQUENCE, "its id is below zero")
        if kind in IGNORED:
            text = said["afterImages"]
            return Message(ignored=IGNORED[kind], after=text if isinstance(text, str) else None, **common)
        if kind not in OPS:
            raise Unfit(RejectCode.UNKNOWN_OPERATION, f"its operation is {kind}, and known are {', '.join(OPS)}")
        if not table:
            raise Unfit(RejectCode.MALFORMED, "it names no table")
        types = _types(said, limits)
        before, after = (_image(said, which, list(types)) for which in ("beforeImages", "afterImages"))
        return Message(
            changes=(_change(OPS[kind], before, after),),
            types=types,
            keys=_key(said["tags"], types),
            before=before,
            after=after,
            **common,
        )

    def type_of(self, said: str) -> pa.DataType:
        """See `Form.type_of`."""
        return arrow_of(said)

    def rows(self, columns: Mapping[str, tuple[pa.DataType, pa.DataType]]) -> ImageRows:
        """See `Form.rows`."""
        return ImageRows(columns)

    def written(self, image: Any) -> bytes | None:
        """See `Form.written`."""
        return written(image)


def _object(said: Mapping[str, Any]) -> tuple[str, str]:
    """The database, and the table with it, as `database.table` or `database.schema.table`; empty where none is named. A
    shard of a logical table says the names of that."""
    tags = said["tags"]
    if "l_db_name" in tags and "l_tb_name" in tags:
        names = [tags["l_db_name"], tags["l_tb_name"]]
    else:
        names = [name.replace(DOT, ".") for name in (said["objectName"] or "").split(".")]
    return names[0], ".".join(names) if len(names) in (2, 3) and all(names) else ""


def _types(said: Mapping[str, Any], limits: Limits) -> dict[str, str]:
    fields = said["fields"]
    if not isinstance(fields, list):
        raise Unfit(RejectCode.MALFORMED, "it does not list its fields")
    if len(fields) > limits.columns:
        raise Unfit(RejectCode.TOO_LARGE, f"it has {len(fields)} columns, more than the {limits.columns} allowed")
    source = said["source"]["sourceType"]
    types = {field["name"]: name_of(source, field["dataTypeNumber"]) for field in fields}
    if len(types) < len(fields) or not types or "" in types:
        raise Unfit(RejectCode.MALFORMED, "it has no fields, two of one name, or one without a name")
    return types


def _image(said: Mapping[str, Any], which: str, names: list[str]) -> Image | None:
    values = said[which]
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != len(names):
        many = len(values) if isinstance(values, list) else "no"
        raise Unfit(RejectCode.MALFORMED, f"its {which} have {many} values, and it has {len(names)} fields")
    image: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        # An `EmptyObject` is its name, or a pair with its branch as other values: fastavro does both within one record.
        content = value[1] if isinstance(value, tuple) else value
        if content != NONE:
            image[name] = None if content == NULL else value
    return image


def _change(op: Op, before: Image | None, after: Image | None) -> Change:
    row = before if op == Op.DELETE else after
    if row is None:
        raise Unfit(RejectCode.MALFORMED, f"it has no image {'before' if op == Op.DELETE else 'after'}")
    return Change(op, row, before if op == Op.UPDATE else None)


def _key(tags: Mapping[str, str], types: Mapping[str, str]) -> tuple[str, ...]:
    """The primary key, in the order of the fields, as the tag promises none; without one the hidden column, if there."""
    try:
        said = _keys(tags.get("pk_uk_info") or "{}")
    except msgspec.MsgspecError:
        raise Unfit(RejectCode.MALFORMED, "its tag pk_uk_info is not JSON with names of columns") from None
    primary = said.get("PRIMARY") or ((HIDDEN_KEY,) if HIDDEN_KEY in types else ())
    return (*(n for n in types if n in primary), *(n for n in dict.fromkeys(primary) if n not in types))


class DtsAvroDecoder(MessageDecoder):
    """`ports.decoder.Decoder` of records of DTS; `options` as in `messages.options.Options`."""

    FORM = Dts()
