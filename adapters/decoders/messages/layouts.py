"""Layouts of rows: declared columns, or the columns in messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
import pyarrow as pa
import structlog

from replicator.domain.change import Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.out_of_range import ReadMode
from replicator.domain.table import Column, TableSpec

from ...arrow.record_errors import malformed_reject
from ..json.type_names import find_type_reader
from ..masking import MaskedTables
from ..options import MessageOptions
from .message import ColumnType, ColumnTypeNames, ColumnTypes, Message, MessageFormat

log = structlog.get_logger(__name__)

MAX_LAYOUTS = MAX_TOLD = 4096
UNTYPED = malformed_reject(
    "it does not say the types of its columns, and its table declares none: write `schema: {id: int64, ...}` for the table"
)

KEYLESS_TRUNCATE = malformed_reject(
    "it is a truncate that does not say the key of its table: write `keys: [...]` for it, and have them in its `schema:`"
)


@dataclass(frozen=True, eq=False)
class MessageLayout:
    """The columns of a table and its key, or an error.

    - `fingerprint`: distinguishes layouts of a table.
    - `has_order`: messages contain their position in the source's log.
    - `type_names`: the types of columns in messages.
    - `declared`: columns whose types are in the configuration.
    - `masked`: types of masked columns.
    - `readings`: treatment of values out of range, by column.
    """

    fingerprint: str = ""
    columns: tuple[Column, ...] = ()
    keys: tuple[str, ...] = ()
    error: Reject | None = None
    has_order: bool = False
    type_names: Mapping[str, str] = field(default_factory=dict)
    declared: Collection[str] = ()
    masked: Mapping[str, pa.DataType] = field(default_factory=dict)
    readings: Mapping[str, ReadMode] = field(default_factory=dict)

    def column_types(self, table: TableSpec) -> ColumnTypes:
        """The types of the columns of `table` in messages, with the wanted types."""
        types = self.unmasked_types() | {name: ColumnType(kind, kind) for name, kind in self.masked.items()}
        return {c.name: types[c.name]._replace(wanted=c.type) for c in table.columns if c.name in types}

    def unmasked_types(self) -> dict[str, ColumnType]:
        """The types of columns in unmasked messages."""
        type_names, declared, modes = self.type_names, self.declared, self.readings
        return {
            c.name: ColumnType(c.type, c.type, type_names.get(c.name, ""), c.name in declared, modes.get(c.name, "reject"))
            for c in self.columns
        }


KEYLESS = MessageLayout(error=KEYLESS_TRUNCATE)


def _is_truncate(message: Message) -> bool:
    return bool(message.changes) and all(change.op == Op.TRUNCATE for change in message.changes)


class MessageLayouts:
    """The layouts of one decoder, cached."""

    def __init__(self, form: MessageFormat, options: MessageOptions) -> None:
        self._form, self._options = form, options
        self._private = MaskedTables(options.private)
        self._known: dict[tuple[str, ColumnTypeNames, tuple[str, ...], bool], MessageLayout] = {}
        self._told: set[tuple[str, str]] = set()

    def get_layout(self, message: Message) -> MessageLayout:
        """The layout of a message's rows."""
        which = (message.table, message.types, message.keys, bool(message.order))
        layout = self._known.get(which)
        if layout is None:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
            layout = self._known[which] = self._read_layout(message)
        # Messages with other operations share the cached layout.
        has_key = layout.keys and set(layout.keys) <= {column.name for column in layout.columns}
        is_lacking = layout.error is None and not has_key and _is_truncate(message)
        return KEYLESS if is_lacking else layout

    def _read_layout(self, message: Message) -> MessageLayout:
        declared = self._options.columns_of(message.table)
        keys = self._options.keys_of(message.table) or message.keys
        if not declared and not message.types:
            return MessageLayout(error=UNTYPED)
        columns = self._find_columns(message.table, keys, message.types)
        if isinstance(columns, Reject):
            return MessageLayout(error=columns)
        missing = [key for key in keys if key not in {column.name for column in columns}]
        if missing and keys == message.keys:
            return MessageLayout(
                error=malformed_reject(f"its key has a column {missing[0]!r}, which is not among its columns")
            )
        parts: list[object] = [[[c.name, str(c.type), *filter(None, [c.text_kind])] for c in columns], keys]
        if self._form.order_elements and not message.order:
            parts.append("offset")
            if self._is_first(message.table, "order"):
                log.warning("messages without a place in their source's log: their offsets order them", table=message.table)
        fingerprint = sha256(msgspec.json.encode(parts)).hexdigest()[:16]
        masks = self._private.get_masks(message.table)
        masked = {c.name: self._private.masked_column(message.table, c).type for c in columns if c.name in masks}
        return MessageLayout(
            fingerprint,
            columns,
            keys,
            has_order=bool(message.order),
            type_names=message.types,
            declared=frozenset(declared or ()),
            masked=masked,
            readings={c.name: self._options.reading_of(message.table, c.name) for c in columns if c.name not in keys},
        )

    def _find_columns(self, table: str, keys: Sequence[str], sent: Mapping[str, str]) -> tuple[Column, ...] | Reject:
        """The declared columns, and those in messages. Declared types take precedence. If the key is declared, only
        declared columns are used; otherwise the other columns in messages are added."""
        declared = self._options.columns_of(table) or {}
        columns = [Column(name, find_type_reader(type_name).type) for name, type_name in declared.items()]
        others = {name: type_name for name, type_name in sent.items() if name not in declared}
        if declared and set(keys) <= declared.keys():
            self._log_left_out(table, list(others))
            return tuple(columns)
        most = self._options.limits.columns
        if len(sent) > most:
            return Reject(RejectCode.TOO_LARGE, f"it has {len(sent)} columns, more than the {most} allowed")
        return (*columns, *(self._find_column(table, name, type_name) for name, type_name in others.items()))

    def _log_left_out(self, table: str, names: Sequence[str]) -> None:
        if names and self._is_first(table, "schema"):
            log.info(
                "columns are left out: `schema:` of the table names its key, and not these",
                table=table,
                columns=names[:20],
                next_step="Leave the key out of `schema:` to have all columns, with the types of the messages.",
            )

    def _is_first(self, table: str, subject: str) -> bool:
        """True if this was not logged before."""
        if (table, subject) in self._told or len(self._told) >= MAX_TOLD:
            return False
        self._told.add((table, subject))
        return True

    def _find_column(self, table: str, name: str, type_name: str) -> Column:
        """A column. An unknown type is read as text, so that one column does not cause the rejection of all rows."""
        column = self._form.column(name, type_name)
        if column is not None:
            return column
        if self._is_first(table, f"type of {name}"):
            log.warning(
                "a column's type is not known: it is read as text",
                table=table,
                column=name,
                type=type_name[:60] or "not said",
                next_step=f"`schema: {{{name}: TYPE}}` of the table gives it another type.",
            )
        return Column(name, pa.string(), source_type=type_name)
