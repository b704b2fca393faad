"""The options models of all formats. `replicator.decoder_options` publishes them, so every command reads this module."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, field_validator, model_validator

from replicator.domain.change import Op
from replicator.domain.errors import ConfigProblem, Reject, RejectCode
from replicator.domain.sequence import MAX_EPOCH
from replicator.domain.transform.columns import Mask
from replicator.ports.adapter_options import AGGREGATE, DecoderOptions, OutboxSettings, ReplicaIdentity, given
from replicator.ports.options import IS_INSTANCE, RegistrySettings

from ..arrow import text_values as texts
from ..arrow.record_errors import RecordLimits, ValueMisfit, find_table_entry
from ..arrow.temporal_values import OutOfRangeOptions
from ..arrow.value_readers import ValueReader
from .common.row_files import OF_LOAD, PARQUET_SEQUENCE, CsvDialect
from .json.type_names import NAMES, find_type_reader

Ignored = Literal["ignore"] | dict[str, Literal["ignore"]]
"""The only treatment of tombstones that most formats have."""


class FormatOptions(DecoderOptions):
    """Base of the options of all these decoders.

    - `epoch`: see `domain.sequence.EPOCH_SHIFT`.
    - `private`: for each table the masks of its masked columns; tables without masks are included.
    """

    masks_values: ClassVar[bool] = True

    epoch: int = given(0, ge=0, le=MAX_EPOCH)
    private: dict[str, dict[str, Annotated[Mask, IS_INSTANCE]]] = given({})
    limits: RecordLimits = given(RecordLimits())

    def columns_of(self, table: str) -> Mapping[str, str] | None:
        """The declared columns of `table`, if any."""
        return find_table_entry(self.declared, table) or None

    def keys_of(self, table: str) -> tuple[str, ...] | None:
        """The configured key of `table`, if any."""
        return find_table_entry(self.keys, table) or None


class DatedOptions(FormatOptions, OutOfRangeOptions):
    """Base of the options of formats with dates and times of many kinds."""

    reads_out_of_range: ClassVar[bool] = True


def _refuse_types(
    declared: Mapping[str, Mapping[str, str]], names: str, can_be: Callable[[ValueReader], bool] = lambda _: True
) -> None:
    """Raise ConfigProblem for every declared column with an unreadable type. The message proposes `names`."""
    bad = []
    for table, columns in declared.items():
        for name, type_name in columns.items():
            try:
                is_readable = can_be(find_type_reader(type_name))
            except ValueMisfit:
                is_readable = False
            if not is_readable:
                reason = "which is no type this format can read"
                bad.append(f"column {name!r} of table {table} is declared as {type_name!r}, {reason}")
    if bad:
        raise ConfigProblem("; ".join(bad), next_step=f"Use an Arrow type name such as {names}.")


def _has_text_form(node: ValueReader) -> bool:
    return texts.find_text_reader(node.type) is not None


# Debezium's events.

PLACEHOLDER = "__debezium_unavailable_value"


class DebeziumOptions(DatedOptions):
    """Options that all decoders of Debezium's events share.

    - `unavailable_value`: the connector's `unavailable.value.placeholder`, one or several; `hex:` as in Debezium.
    - `schema`: for each table (exact name or glob) the columns of events without a schema, as Arrow type names (see
      `debezium.schema.find_declared_reader`).
    - `keys`: for each table the key columns, instead of those in the message key.
    - `tombstones`: with `delete`, a null value is a delete and the table is ordered by (epoch, offset).
    - `decimals`: the form of decimals in JSON text without a schema: digits (`text`) or Base64 of the unscaled value
      (`base64`). By default, ambiguous text is refused.
    - `flattened`: records are rows from ExtractNewRecordState.
    - `replica_identity`: PostgreSQL's deletes contain the whole row (`full`) or the key (`default`), for each table or
      for all. By default each record is examined.
    """

    has_schema_names: ClassVar[bool] = True
    has_transactions: ClassVar[bool] = True
    has_compacted_topics: ClassVar[bool] = True
    has_backfills: ClassVar[bool] = True

    replica_identity: ReplicaIdentity | dict[str, ReplicaIdentity] | None = None

    unavailable_value: Annotated[
        tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = given((PLACEHOLDER,))
    tombstones: Literal["ignore", "delete"] | dict[str, Literal["ignore", "delete"]] = given("ignore")
    decimals: Literal["text", "base64"] | None = given()
    flattened: bool = given(False)

    def replica_identity_of(self, table: str) -> ReplicaIdentity | None:
        """The configured replica identity of `table`, if any."""
        identity = self.replica_identity
        return find_table_entry(identity, table) if isinstance(identity, dict) else identity

    def deletes_by_tombstone(self, table: str) -> bool:
        """True if a null value is a delete in `table`."""
        mode = self.tombstones if isinstance(self.tombstones, str) else find_table_entry(self.tombstones, table)
        return mode == "delete"

    @property
    def any_tombstone_deletes(self) -> bool:
        """True if a null value is a delete in any table."""
        return self.tombstones == "delete" or (isinstance(self.tombstones, dict) and "delete" in self.tombstones.values())


class DebeziumJsonOptions(DebeziumOptions):
    """Options of the format `debezium_json`."""

    what: ClassVar[str] = "debezium_json"
    rank: ClassVar[int] = 1

    decimals: Literal["text", "base64"] | None = None
    flattened: bool = False


class DebeziumAvroOptions(DebeziumOptions):
    """Options of the format `debezium_avro`: also the schema registry."""

    what: ClassVar[str] = "debezium_avro"
    rank: ClassVar[int] = 2
    in_connect_files: ClassVar[bool] = False
    has_plain_names: ClassVar[bool] = True

    registry: RegistrySettings


# Events of an outbox.

FIELDS = ("id", "aggregatetype", "aggregateid", "type", "payload")
"""The columns of an outbox table, with the names in Debezium's documentation."""


class OutboxOptions(OutboxSettings):
    """The names of outbox tables and columns, as the decoder needs them."""

    def to_table(self, aggregate: str) -> str:
        """The table of an aggregate's events."""
        return self.route_to.replace(AGGREGATE, aggregate)

    def to_aggregate(self, topic: str) -> str | None:
        """The aggregate whose events the topic contains; None if the name does not match."""
        match = self._topic_pattern.fullmatch(topic)
        return match[1] if match else None

    @cached_property
    def _topic_pattern(self) -> re.Pattern[str]:
        before, _, after = self.route_to.partition(AGGREGATE)
        return re.compile(f"{re.escape(before)}(.+){re.escape(after)}")


class OutboxDecoderOptions(FormatOptions):
    """Options of the format `debezium_outbox`. Tables declare neither columns nor keys, because events define them. `epoch`
    has no effect on events, which have no log positions. `private`: for each table the masks of columns, and of payload
    fields as `payload.NAME`."""

    what: ClassVar[str] = "debezium_outbox"
    rank: ClassVar[int] = 3
    reload_step: ClassVar[str] = "Its tables have events and no rows: make the service write the events again."

    outbox: OutboxOptions = OutboxOptions()

    tombstones: Ignored = given("ignore")

    @field_validator("declared", "keys")
    @classmethod
    def _refuse_declared(cls, value: dict[str, Any]) -> dict[str, Any]:
        if any(value.values()):
            raise ValueError("the columns and the key of events are not declared")
        return value


# Messages.


class MessageOptions(DatedOptions):
    """Options of a decoder of messages.

    `schema`: for each table (exact name or glob) columns and their types, which take precedence over those in messages.
    With the key columns these are all columns; without them, the other columns in messages are added.
    """

    tombstones: Ignored = given("ignore")

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """See `AdapterOptions.read`. Also ConfigProblem for a declared type that messages cannot have."""
        settings = super().read(options)
        _refuse_types(settings.declared, f"{texts.NAMES}, or list<string>", has_text_reader)
        return settings


def has_text_reader(node: ValueReader) -> bool:
    """True if the type may be used in `declared`: one with a text form, or a list."""
    return _has_text_form(node) or pa.types.is_list(node.type)


class DtsOptions(MessageOptions):
    """Options of the format `dts_avro`."""

    what: ClassVar[str] = "dts_avro"
    rank: ClassVar[int] = 4
    in_connect_files: ClassVar[bool] = False
    reload_step: ClassVar[str] = "Have DTS do a full load of the table: its INIT records come before the changes."


class CanalOptions(MessageOptions):
    """Options of the format `canal_json`."""

    what: ClassVar[str] = "canal_json"
    rank: ClassVar[int] = 7


class MaxwellOptions(MessageOptions):
    """Options of the format `maxwell_json`."""

    what: ClassVar[str] = "maxwell_json"
    rank: ClassVar[int] = 8
    reload_step: ClassVar[str] = "Have Maxwell do it: `maxwell-bootstrap --database SCHEMA --table TABLE`."


class GoldenGateOptions(MessageOptions):
    """Options of the format `ogg_json`."""

    what: ClassVar[str] = "ogg_json"
    rank: ClassVar[int] = 9
    reload_step: ClassVar[str] = "Have an initial-load Extract of GoldenGate write the table into the topic."


# Plain rows.

OPS = {"create": Op.CREATE, "update": Op.UPDATE, "delete": Op.DELETE, "read": Op.READ}


def _to_texts(value: object) -> object:
    """Texts of values from YAML, which reads `1` as a number."""
    several = value if isinstance(value, list | tuple) else [value]
    return [str(one) if isinstance(one, int) else one for one in several]


Texts = Annotated[tuple[str, ...], BeforeValidator(_to_texts)]


class RowOptions(DatedOptions):
    """Options of a decoder of plain rows.

    - `operation_column`: the column with the operation of a row.
    - `operations`: for each operation the values that mean it.
    - `schema`: for each table (exact name or glob) its columns and their types.
    """

    is_rows: ClassVar[bool] = True
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]]
    """The names of operations if the configuration has none."""
    UNSAID: ClassVar[Collection[str]] = ()
    """Names of operations that only transports write."""

    operation_column: str = Field(min_length=1)
    operations: dict[Literal["create", "update", "delete", "read"], Texts] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_meanings(self) -> RowOptions:
        for (name, values), (other, other_values) in combinations(self.list_meanings().items(), 2):
            if set(values) & set(other_values):
                raise ValueError(f"operations: {name} and {other} have a value in common")
        return self

    def list_meanings(self) -> Mapping[str, tuple[str, ...]]:
        """For each operation the values that mean it."""
        return {str(name): values for name, values in (self.operations or self.USUAL).items()}

    @cached_property
    def operation_of(self) -> Mapping[str, Op]:
        """The operation of each value of the operation column."""
        return {text: OPS[name] for name, values in self.list_meanings().items() for text in values}

    def unknown_operation_reject(self, value: object) -> Reject:
        """The reject of a row with a missing or unknown operation."""
        names = ", ".join(sorted(self.operation_of.keys() - self.UNSAID))
        operation = "no operation" if value is None else "an operation that is not known"
        return Reject(RejectCode.UNKNOWN_OPERATION, f"column {self.operation_column!r} holds {operation}; known are {names}")


DMS_OPERATIONS: Mapping[str, tuple[str, ...]] = {"create": ("I",), "update": ("U",), "delete": ("D",)}
DMS_RELOAD = "Reload the table in the DMS task."


class DmsCsvOptions(RowOptions):
    """Options of the format `dms_csv`: see `CsvDialect` for `csv`. The defaults are those of DMS."""

    what: ClassVar[str] = "dms_csv"
    rank: ClassVar[int] = 5
    transports: ClassVar[frozenset[str]] = RowOptions.transports | {"files"}
    in_connect_files: ClassVar[bool] = False
    reload_step: ClassVar[str] = DMS_RELOAD
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = DMS_OPERATIONS

    operation_column: str = Field("Op", min_length=1)
    csv: CsvDialect = CsvDialect()

    tombstones: Ignored = given("ignore")

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """See `AdapterOptions.read`. Also ConfigProblem for a declared type without a text form."""
        settings = super().read(options)
        _refuse_types(settings.declared, texts.NAMES, _has_text_form)
        return settings


OPERATION = "_op"
SEQUENCE = ("_version", "_order", "_row")
BEFORE = "_before"
"""Field names in records of `transport: delta`."""
OF_OFFSET = 2
"""Elements of a sequence made of the offset: in a single one, large offsets would leave no room for the epoch."""


class RowsDecoderOptions(RowOptions):
    """Options of the format `rows`: see its package, and `RowOptions` for the inherited ones.

    - `sequence_columns`: empty if offsets order the rows.
    - `inserts_only`: a row without an operation is a create.
    - `text_values`: every value is text, read by `adapters.arrow.text_values`.
    - `tombstones`: `delete` makes a record without a value a delete of its key. Requires `inserts_only` and no
      `sequence_columns`.
    - `in_files`: offsets encode positions in files, which rejects then name.
    - `truncates`: for each table the condition (`domain.expr.Expr`) of its truncates, which need no key.
    """

    what: ClassVar[str] = "rows"
    rank: ClassVar[int] = 10
    transports: ClassVar[frozenset[str]] = RowOptions.transports | {"files", "snapshots", "query"}
    reads_truncates: ClassVar[bool] = True
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "create": ("c", "I", "INSERT"),
        "update": ("u", "U", "UPDATE", "UPSERT"),
        "delete": ("d", "D", "DELETE"),
        "read": ("r",),
    }

    operation_column: str = Field(OPERATION, min_length=1)
    sequence_columns: tuple[str, ...] = Field(SEQUENCE, max_length=4)

    inserts_only: bool = given(False)
    tombstones: Literal["ignore", "delete"] | dict[str, Literal["ignore", "delete"]] = given("ignore")
    text_values: bool = given(False)
    in_files: bool = given(False)
    truncates: dict[str, Any] = given({})

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """See `AdapterOptions.read`. Also ConfigProblem for a declared type that rows cannot have."""
        settings = super().read(options)
        if settings.text_values:
            _refuse_types(settings.declared, texts.NAMES, _has_text_form)
        else:
            _refuse_types(settings.declared, NAMES)
        return settings

    @model_validator(mode="after")
    def _check_sequence_columns(self) -> RowsDecoderOptions:
        if len({*self.sequence_columns, self.operation_column}) <= len(self.sequence_columns):
            raise ValueError("operation_column and sequence_columns name a column twice")
        modes = self.tombstones if isinstance(self.tombstones, dict) else {"": self.tombstones}
        if "delete" in modes.values() and (self.sequence_columns or not self.inserts_only):
            raise ValueError("tombstones: delete needs rows that are all new ones, in the order of their offsets")
        return self

    @property
    def elements(self) -> int:
        """The number of elements in the sequence."""
        return len(self.sequence_columns) or OF_OFFSET

    def find_column_reader(self, type_name: str) -> ValueReader:
        """The reader for values of a column with this declared type."""
        return texts.text_value_reader(find_type_reader(type_name).type) if self.text_values else find_type_reader(type_name)

    @property
    def before_field(self) -> str | None:
        """The field with the old values of an update, if records have one."""
        return BEFORE if self.sequence_columns == SEQUENCE else None


class DmsParquetOptions(RowsDecoderOptions):
    """Options of the format `dms_parquet`: those of `rows` with the defaults of DMS."""

    what: ClassVar[str] = "dms_parquet"
    rank: ClassVar[int] = 6
    transports: ClassVar[frozenset[str]] = DmsCsvOptions.transports
    in_connect_files: ClassVar[bool] = False
    reads_truncates: ClassVar[bool] = False
    reload_step: ClassVar[str] = DMS_RELOAD
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = DMS_OPERATIONS
    UNSAID: ClassVar[Collection[str]] = (OF_LOAD,)

    operation_column: str = Field("Op", min_length=1)

    sequence_columns: tuple[str, ...] = given(PARQUET_SEQUENCE)

    def list_meanings(self) -> Mapping[str, tuple[str, ...]]:
        """See `RowOptions.list_meanings`. Adds the value that the transport writes into full-load rows."""
        meanings = super().list_meanings()
        return {**meanings, "read": (*meanings.get("read", ()), OF_LOAD)}
