"""What records of DTS say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.domain.table import Column

from ...arrow.json.faults import UNREADABLE, Unfit
from ...arrow.json.limits import Limits
from ...arrow.messages.decoder import MessageDecoder
from ...arrow.messages.message import Change, Form, Message, Types, micros
from ...arrow.messages.typed import ColumnTypes
from .avro import record_of, with_rest
from .names import object_of
from .printed import printed
from .rows import Image, ImageRows, written
from .types import arrow_of, name_of, source_type_of
from .values import NONE, NULL
from .veiled import OpensDts

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
MAX_KNOWN = 1024
"""Lists of fields and keys that are remembered, as they were sent."""
_keys = msgspec.json.Decoder(dict[str, tuple[str, ...]]).decode


class Dts(Form):
    """`messages.message.Form` of DTS."""

    name, connector, ordered, by_tx = "dts_avro", "dts", 2, True

    def read(self, value: bytes, limits: Limits) -> Message:
        """See `Form.read`."""
        said = record_of(value, limits)
        kind = said["operation"]
        database, table = object_of(said)
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
        before, after = _image(said, "beforeImages", types), _image(said, "afterImages", types)
        return Message(
            changes=(_change(OPS[kind], before, after),),
            types=types,
            keys=_key(said["tags"].get("pk_uk_info") or "{}", types),
            before=before,
            after=after,
            **common,
        )

    def column(self, name: str, said: str) -> Column | None:
        """See `Form.column`."""
        arrow = arrow_of(said)
        return None if arrow is None else Column(name, arrow, source_type=source_type_of(said))

    def table_of(self, value: bytes, limits: Limits) -> str | None:
        """See `Form.table_of`."""
        try:
            said, _ = with_rest(value, limits)
        except UNREADABLE:
            return None
        return object_of(said)[1] or None

    def rows(self, columns: ColumnTypes) -> ImageRows:
        """See `Form.rows`."""
        return ImageRows(columns)

    def many(self, like: bytes, columns: ColumnTypes, keys: Sequence[str]) -> None:
        """See `Form.many`: fastavro makes Python's values of every row."""

    def written(self, image: Any) -> bytes | None:
        """See `Form.written`."""
        return written(image)


def _types(said: Mapping[str, Any], limits: Limits) -> Types:
    fields = said["fields"]
    if not isinstance(fields, list):
        raise Unfit(RejectCode.MALFORMED, "it does not list its fields")
    if len(fields) > limits.columns:
        raise Unfit(RejectCode.TOO_LARGE, f"it has {len(fields)} columns, more than the {limits.columns} allowed")
    return _types_of(said["source"]["sourceType"], tuple([(field["name"], field["dataTypeNumber"]) for field in fields]))


@lru_cache(MAX_KNOWN)
def _types_of(source: str, fields: tuple[tuple[str, int], ...]) -> Types:
    """Records of a table say the same: they are read once. Raises Unfit."""
    types = Types({name: name_of(source, number) for name, number in fields})
    if len(types) < len(fields) or not types or "" in types:
        raise Unfit(RejectCode.MALFORMED, "it has no fields, two of one name, or one without a name")
    return types


def _image(said: Mapping[str, Any], which: str, names: Types) -> Image | None:
    values = said[which]
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != len(names):
        many = len(values) if isinstance(values, list) else "no"
        raise Unfit(RejectCode.MALFORMED, f"its {which} have {many} values, and it has {len(names)} fields")
    # An `EmptyObject` is its name, or a pair with its branch as other values: fastavro does both within one record.
    named = zip(names, values, strict=True)
    contents = [value[1] if isinstance(value, tuple) else value for value in values]
    if NONE not in contents and NULL not in contents:
        return dict(named)
    pairs = zip(named, contents, strict=True)
    return {name: None if content == NULL else value for (name, value), content in pairs if content != NONE}


def _change(op: Op, before: Image | None, after: Image | None) -> Change:
    row = before if op == Op.DELETE else after
    if row is None:
        raise Unfit(RejectCode.MALFORMED, f"it has no image {'before' if op == Op.DELETE else 'after'}")
    return Change(op, row, before if op == Op.UPDATE else None)


@lru_cache(MAX_KNOWN)
def _key(text: str, types: Types) -> tuple[str, ...]:
    """The primary key, in the order of the fields, as the tag promises none; without one the hidden column, if there."""
    try:
        said = _keys(text)
    except msgspec.MsgspecError:
        raise Unfit(RejectCode.MALFORMED, "its tag pk_uk_info is not JSON with names of columns") from None
    primary = said.get("PRIMARY") or ((HIDDEN_KEY,) if HIDDEN_KEY in types else ())
    return (*(n for n in types if n in primary), *(n for n in dict.fromkeys(primary) if n not in types))


class DtsAvroDecoder(MessageDecoder):
    """`ports.decoder.Decoder` of records of DTS; `options` as in `messages.options.Options`."""

    FORM = Dts()
    OPENS = OpensDts

    def printed(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.PrintsRecords.printed`."""
        return printed(raw["value"].to_pylist(), self._options.limits)
