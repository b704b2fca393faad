"""What a source table looks like, as learnt from its own change events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from .errors import Fatal

BYTE_ORDER = "replicator.byte_order"
"""The source type of a column of this program's own whose text is compared as bytes, whatever language a target is in."""

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
"""Source types of text for which some target has a closer type, and what that text holds. All others are plain text,
whatever their source calls them: `varchar(20)`, `VARCHAR(10)`, `enum('a')`."""

RESERVED_PREFIXES = ("_cdc_", "__START_AT", "__END_AT", "_event_id")


def is_reserved(name: str) -> bool:
    """Targets use such a name for bookkeeping, in any case."""
    return name.casefold().startswith(tuple(prefix.casefold() for prefix in RESERVED_PREFIXES))


def describe_rename(name: str, *, drop: bool = True) -> str:
    """What to write where a target cannot have a column of this name. `drop`: it need not have the column."""
    if not name.isprintable():  # The config has no such names.
        return "Rename the column at the source, or have the connector leave it out (`column.exclude.list`)."
    rename = f"Give it another name in the target with `columns: {{{name!r}: {{rename: NAME}}}}`"
    return f"{rename}, or leave it out with `columns: {{{name!r}: drop}}`." if drop else f"{rename}."


@dataclass(frozen=True, slots=True)
class Column:
    """A source column: its name as the source spells it, and the Arrow type its values are decoded to."""

    name: str
    type: pa.DataType
    nullable: bool = True
    source_type: str = ""
    """The source's own name of the type where it sends one (`io.debezium.data.Json`, `io.debezium.data.Uuid` ...);
    a target may use it to pick a closer type. One that does is in `TEXT_KINDS`."""

    @property
    def text_kind(self) -> str:
        """What its text holds; empty for plain text, and for other types."""
        return TEXT_KINDS.get(self.source_type, "") if pa.types.is_string(self.type) else ""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table at one version of its schema.

    `name` is the database-side name (`public.customers`). `keys` are names of `columns`, empty for a table without a key.
    `sequence` is the number of elements `_seq_1..n` that its decoder declares; they are int64, but for those whose numbers,
    from 1, `text_elements` lists: these are text, compared as bytes. `ordered_by`: the columns that the first elements
    come from, where a lane has `sequence_by` (`domain.transform.rows`); a lane's target need not have them. `counted`: for
    want of a key the last element only counts changes that share the others, and a change that is sent again may come with
    another count. `ignore_null`: columns of which an upsert's NULL leaves what the row holds, where a lane asks for that.
    `soft_deletes`: a delete leaves the row with its values, marked, where a lane asks for that. `has_column_versions`: so
    does `sequences per column`, which a source needs that sends parts of rows in any order. `unordered`: its records do
    not say where in the source's log they are, so that a lane has to order them by columns of its own. `by_commit`: the
    first element of the sequence is of the commit, one for all changes of a transaction and for no others. `by_tx`: only
    `_tx` is of the transaction, and its database may check keys when a statement or a transaction ends. `fingerprint`
    identifies the schema as it was sent; it is opaque and never compared across formats.
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

    @property
    def sequence_types(self) -> tuple[pa.DataType, ...]:
        """The types of the elements of its sequence, in order."""
        return tuple(pa.string() if i in self.text_elements else pa.int64() for i in range(1, self.sequence + 1))

    @property
    def column_names(self) -> tuple[str, ...]:
        """All columns in order."""
        return tuple(c.name for c in self.columns)

    @property
    def values(self) -> tuple[Column, ...]:
        """The columns that are not part of the key."""
        return tuple(c for c in self.columns if c.name not in self.keys)

    def column(self, name: str) -> Column:
        """The column of that exact name; KeyError when there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def with_keys(self, keys: tuple[str, ...]) -> TableSpec:
        """The same table keyed by `keys`, which must be its columns."""
        missing = [k for k in keys if k not in self.column_names]
        if missing:
            raise Fatal(
                f"table {self.name} has no column {missing[0]!r}, which its configured keys name",
                next_step="Correct `keys` of this table in the configuration.",
            )
        return replace(self, keys=keys, counted=self.counted and not keys)

    def union(self, newer: TableSpec) -> TableSpec:
        """This table with the columns that only `newer` has added at the end; known columns keep their type."""
        known = set(self.column_names)
        added = tuple(c for c in newer.columns if c.name not in known)
        return replace(self, columns=self.columns + added, fingerprint=newer.fingerprint)

    def refuse_reserved_names(self) -> None:
        """Raise Fatal when a column's name is one that targets use for bookkeeping, in any case."""
        for name in self.column_names:
            if is_reserved(name):
                raise Fatal(
                    f"column {name!r} of table {self.name} has a name that replicator keeps for itself",
                    next_step=describe_rename(name),
                )

    def refuse_keys_alike(self) -> None:
        """Raise Fatal when the names of two key columns differ in case only: engines that fold case would take two rows
        for one."""
        if len({k.casefold() for k in self.keys}) < len(self.keys):
            raise Fatal(
                f"the key of table {self.name} ({', '.join(self.keys)}) has columns whose names differ in case only",
                next_step=f"{describe_rename(self.keys[-1], drop=False)} Or name another key with `keys`.",
            )
