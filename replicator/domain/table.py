"""A source table, as learnt from its change events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from .errors import Fatal

BYTE_ORDER = "replicator.byte_order"
"""The source type of Replicator's own text columns. They are compared as bytes, independent of the target's collation."""

TEXT_KINDS = {
    "io.debezium.data.Json": "json",
    "io.debezium.data.Uuid": "uuid",
    "io.debezium.time.Interval": "interval",
    "io.debezium.data.VariableScaleDecimal": "number",
    "org.apache.kafka.connect.data.Decimal": "number",
    "io.debezium.time.ZonedTime": "time",
    "io.debezium.data.Tsvector": "tsvector",
    "io.debezium.data.TsVector": "tsvector",
    BYTE_ORDER: "bytes",
}
"""Source types of text with a closer type in some target, and the kind of that text. All others are plain text, such as
`varchar(20)`, `VARCHAR(10)`, `enum('a')`. PostgreSQL's types of the kinds are in
`adapters/postgres/types.py`."""

RESERVED_PREFIXES = ("_cdc_", "__START_AT", "__END_AT", "_event_id")


def is_reserved(name: str) -> bool:
    """True for a name that targets use for bookkeeping, in any case."""
    return name.casefold().startswith(tuple(prefix.casefold() for prefix in RESERVED_PREFIXES))


def describe_rename(name: str, *, drop: bool = True) -> str:
    """The next step if a target cannot have a column of this name. `drop`: the target does not need the column."""
    if not name.isprintable():  # The config cannot contain such names.
        return "Rename the column at the source, or have the connector leave it out (`column.exclude.list`)."
    rename = f"Give it another name in the target with `columns: {{{name!r}: {{rename: NAME}}}}`"
    return f"{rename}, or leave it out with `columns: {{{name!r}: drop}}`." if drop else f"{rename}."


@dataclass(frozen=True, slots=True)
class Column:
    """A source column: its name at the source, and the Arrow type of its decoded values."""

    name: str
    type: pa.DataType
    nullable: bool = True
    source_type: str = ""
    """The source's name of the type, if it sends one (`io.debezium.data.Json`, `io.debezium.data.Uuid` ...). A
    target chooses a closer type by it for columns of text only: then it is in `TEXT_KINDS`."""

    @property
    def text_kind(self) -> str:
        """The kind of its text; empty for plain text, and for other types."""
        return TEXT_KINDS.get(self.source_type, "") if pa.types.is_string(self.type) else ""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table at one version of its schema.

    - `name`: the name in the database (`public.customers`).
    - `keys`: names of `columns`, empty for a table without a key.
    - `sequence`: the number of elements `_seq_1..n` of its decoder. They are int64. `text_elements` lists exceptions by
      number, from 1: these are text, compared as bytes.
    - `ordered_by`: the columns of the first elements, if a lane has `sequence_by` (`domain.transform.rows`). The lane's
      target need not have them.
    - `counted`: the table has no key, and the last element only counts changes with equal other elements. A change that
      is sent again may have another count.
    - `ignore_null`: columns in which an upsert's NULL does not change an existing row, if a lane is configured so.
    - `soft_deletes`: a delete marks the row and keeps its values, if a lane is configured so.
    - `has_column_versions`: the newest value of each column wins, if a lane is configured so. Needed for a source that
      sends partial rows in any order.
    - `unordered`: its records have no position in the source's log, so a lane has to order them by columns.
    - `by_commit`: the first element of the sequence is the commit: equal for all changes of one transaction, and only
      for them.
    - `by_tx`: only `_tx` identifies the transaction, and the database may check keys at the end of a statement or
      transaction.
    - `partial`: its records may lack columns of the table, such as deletes with nothing but the key. A lane that knows more
      columns keeps them.
    - `fingerprint`: identifies the schema as sent. It is opaque and never compared across formats.
    """

    name: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...] = ()
    sequence: int = 1
    fingerprint: str = field(default="", compare=False)
    counted: bool = False
    ignore_null: tuple[str, ...] = ()
    text_elements: tuple[int, ...] = ()
    ordered_by: tuple[Column, ...] = ()
    soft_deletes: bool = False
    has_column_versions: bool = False
    unordered: bool = False
    by_commit: bool = False
    by_tx: bool = False
    partial: bool = field(default=False, compare=False)

    @property
    def sequence_types(self) -> tuple[pa.DataType, ...]:
        """The types of its sequence elements, in order."""
        return tuple(pa.string() if i in self.text_elements else pa.int64() for i in range(1, self.sequence + 1))

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of all columns in order."""
        return tuple(c.name for c in self.columns)

    @property
    def values(self) -> tuple[Column, ...]:
        """The columns that are not part of the key."""
        return tuple(c for c in self.columns if c.name not in self.keys)

    def column(self, name: str) -> Column:
        """The column of that exact name; KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def with_keys(self, keys: tuple[str, ...]) -> TableSpec:
        """The same table with the key `keys`, which must be its columns."""
        missing = [k for k in keys if k not in self.column_names]
        if missing:
            raise Fatal(
                f"table {self.name} has no column {missing[0]!r}, which its configured keys name",
                next_step="Correct `keys` of this table in the configuration.",
            )
        return replace(self, keys=keys, counted=self.counted and not keys)

    def union(self, newer: TableSpec) -> TableSpec:
        """This table with the additional columns of `newer` at the end; known columns keep their type."""
        names = set(self.column_names)
        added = tuple(c for c in newer.columns if c.name not in names)
        return replace(self, columns=self.columns + added, fingerprint=newer.fingerprint)

    def refuse_reserved_names(self) -> None:
        """Raise Fatal if a column has a name that targets use for bookkeeping, in any case."""
        for name in self.column_names:
            if is_reserved(name):
                raise Fatal(
                    f"column {name!r} of table {self.name} is reserved for Replicator",
                    next_step=describe_rename(name),
                )

    def refuse_keys_alike(self) -> None:
        """Raise Fatal if the names of two key columns differ in case only: engines that fold case would mix up rows."""
        if len({k.casefold() for k in self.keys}) < len(self.keys):
            raise Fatal(
                f"the key of table {self.name} ({', '.join(self.keys)}) has columns whose names differ in case only",
                next_step=f"{describe_rename(self.keys[-1], drop=False)} Or name another key with `keys`.",
            )


def get_unqualified_name(table: str) -> str:
    """The table's own name, without schema and database: `public.orders` is `orders`."""
    return table.rpartition(".")[2]


def describe_target_problem(text: str) -> str:
    """Why the text cannot be the name of a target: completes a sentence; empty when it can."""
    if text != text.strip() or not text or any(c in "/\\" or ord(c) < 32 for c in text):
        return "must be the name of a table: not empty, no slashes, no control characters, no spaces around it"
    return "is a reserved name" if text in {".", ".."} or text.startswith("_replicator") else ""
