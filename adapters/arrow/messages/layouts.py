"""What rows of a table look like: as declared, or as the messages say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import Column

from ..json.faults import Unfit, malformed
from ..json.spelling import node_of
from ..veils.tables import PrivateTables
from .message import Form, Message, Types
from .options import Options

MAX_LAYOUTS = 4096
UNTYPED = malformed(
    "it does not say the types of its columns, and its table declares none: write `schema: {id: int64, ...}` for the table"
)

KEYLESS_TRUNCATE = malformed("it is a truncate that does not say the key of its table: write `keys: [...]` for the table")


@dataclass(frozen=True, eq=False)
class Layout:
    """The columns of a table and its key; or why they are not known. `fingerprint` tells layouts of a table apart.
    `types`: those that values are read in, which are other ones in columns that are masked."""

    fingerprint: str = ""
    columns: tuple[Column, ...] = ()
    keys: tuple[str, ...] = ()
    error: Reject | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)


KEYLESS = Layout(error=KEYLESS_TRUNCATE)


def _is_truncate(message: Message) -> bool:
    return bool(message.changes) and all(change.op == Op.TRUNCATE for change in message.changes)


class Layouts:
    """The layouts of one decoder; keeps those it has seen."""

    def __init__(self, form: Form, options: Options) -> None:
        self._form, self._options = form, options
        self._private = PrivateTables(options.private)
        self._known: dict[tuple[str, Types, tuple[str, ...]], Layout] = {}

    def of(self, message: Message) -> Layout:
        """The layout of the rows of a message."""
        which = (message.table, message.types, message.keys)
        found = self._known.get(which)
        if found is None:
            if len(self._known) >= MAX_LAYOUTS:
                self._known.clear()
            found = self._known[which] = self._read(message)
        # Messages of other operations share what is kept.
        is_lacking = found.error is None and not found.keys and _is_truncate(message)
        return KEYLESS if is_lacking else found

    def _read(self, message: Message) -> Layout:
        declared = self._options.columns_of(message.table)
        keys = self._options.keys_of(message.table) or message.keys
        if not declared and not message.types:
            return Layout(error=UNTYPED)
        columns = self._columns(declared, message.types)
        if isinstance(columns, Reject):
            return Layout(error=columns)
        missing = [key for key in keys if key not in {column.name for column in columns}]
        if missing and keys == message.keys:
            return Layout(error=malformed(f"its key has a column {missing[0]!r}, which is not among its columns"))
        written = msgspec.json.encode([[[c.name, str(c.type)] for c in columns], keys])
        fingerprint = sha256(written).hexdigest()[:16]
        types = {c.name: self._private.column(message.table, c).type for c in columns}
        return Layout(fingerprint, columns, keys, types=types)

    def _columns(self, declared: Mapping[str, str] | None, sent: Mapping[str, str]) -> tuple[Column, ...] | Reject:
        if declared:
            return tuple(Column(name, node_of(said).type) for name, said in declared.items())
        most = self._options.limits.columns
        if len(sent) > most:
            return Reject(RejectCode.TOO_LARGE, f"it has {len(sent)} columns, more than the {most} allowed")
        found: list[Column] = []
        for name, said in sent.items():
            try:
                found.append(Column(name, self._form.type_of(said), source_type=said))
            except Unfit as error:
                return Reject(error.reject.code, f"column {name!r}: {error.reject.sentence}")
        return tuple(found)
