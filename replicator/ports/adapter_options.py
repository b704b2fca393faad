"""The options models that adapters publish.

A source or a sink has one pydantic model for its section of the config. Its package names the model in an entry point in the
group `replicator.source_options` or `replicator.sink_options`, under the name of the adapter. The models of the sections
`dead_letters` and `event_store` are in `replicator.store_options`, and those of formats in `replicator.decoder_options`. The
models also have all that the core knows of adapters.
`replicator check` then checks the keys and the values, the JSON Schema has them, and the adapter gets the validated object.
A module with a model is imported by every command that reads a config, so it must not import a driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from replicator.domain.errors import ConfigProblem

from .options import (
    OF_PROGRAM,
    Count,
    CsvSettings,
    Duration,
    HttpUrl,
    RegistrySettings,
    Size,
    SourceDsn,
    Strict,
    Text,
    make_value_error,
    to_timedelta,
    unset,
)


def given(default: Any = None, **more: Any) -> Any:
    """The field of a value that the pipeline adds. It is no key of the config."""
    return Field(default, exclude=True, **more)


class AdapterOptions(Strict):
    """Base of the options models: the keys of an adapter in the config, and the values that the pipeline adds."""

    what: ClassVar[str] = "an adapter"
    """The adapter, for messages."""
    rank: ClassVar[int] = 100
    """The place in lists of all adapters. Built-in adapters come first."""
    assumed: ClassVar[Mapping[str, Any]] = {}
    """Keys that a program may leave out, but not the config."""

    session: Mapping[str, str] | None = given()
    """The session options of the engine; None for an engine in this process."""
    stores: tuple[str, ...] = given(())
    """The schemes of the object stores that some adapter of the program uses."""

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """The options: validated already, or a mapping. ConfigProblem that names each wrong key, and never shows a value."""
        if isinstance(options, cls):
            return options
        values = cast(Mapping[str, Any], options)
        paths = {key: str(value) for key, value in values.items() if isinstance(value, Path)}
        try:
            return cls.model_validate({**cls.assumed, **values, **paths}, context=OF_PROGRAM)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}".removeprefix(": ") for e in wrong)
            raise cls.refuse(text) from None

    @classmethod
    def refuse(cls, why: str) -> ConfigProblem:
        """The error for options that do not fit together. `why` ends without a full stop."""
        keys = ", ".join(cls.list_keys())
        return ConfigProblem(f"The options of {cls.what} are not valid: {why}.", next_step=f"The options are: {keys}.")

    @classmethod
    def list_keys(cls) -> Mapping[str, FieldInfo]:
        """The keys of the config."""
        return {info.alias or name: info for name, info in cls.model_fields.items() if not info.exclude}

    def with_given(self, values: Mapping[str, Any]) -> Self:
        """The options with values of the pipeline. Values that the model does not have are left out."""
        names = {info.alias or name: name for name, info in type(self).model_fields.items()}
        return self.model_copy(update={names[key]: value for key, value in self.select_given(values).items()})

    @classmethod
    def select_given(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values that the model has."""
        names = {info.alias or name for name, info in cls.model_fields.items()}
        return {key: value for key, value in values.items() if key in names}

    def for_projector(self, section: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: ARG002 - Of most adapters.
        """The location of its lake for projectors, from the adapter's section of the config: `path`, and what else they need
        to write Delta tables there. None: the sink is no lake. Its `SinkFeatures` have its tables."""
        return None

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = handler(schema)
        own = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, info in cls.model_fields.items():
            if info.exclude:
                own.pop(info.alias or name, None)
        return json_schema


# Sources: the keys of the transport, of its formats, and of what all sources have.


def _to_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


ONE_OR_SEVERAL = WithJsonSchema(
    {"anyOf": [{"type": ["string", "number"]}, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]}
)
CatalogTable = Annotated[str, Field(pattern=r"^[^.`\s]+(\.[^.`\s]+){1,2}$")]
ColumnName = Annotated[str, Field(min_length=1)]
OperationValues = Annotated[list[Text], BeforeValidator(_to_list), Field(min_length=1), ONE_OR_SEVERAL]
ROWS = "rows"
"""The format of records that are rows."""
ReplicaIdentity: TypeAlias = Literal["full", "default"]
Mode = Literal["stream", "batch"]


AGGREGATE = "{aggregatetype}"


class OutboxSettings(Strict):
    """The table names of outbox events, and the columns of the outbox table. See docs/how-to/read-an-outbox.md."""

    route_to: Annotated[str, WithJsonSchema({"pattern": r"^[^{}]*\{aggregatetype\}[^{}]*$", "type": "string"})] = (
        f"outbox.event.{AGGREGATE}"
    )
    """The table name of an event. It must contain `{aggregatetype}` once. Events of EventRouter have their topic as
    table name."""
    columns: dict[Literal["id", "aggregatetype", "aggregateid", "type", "payload"], ColumnName] = Field(default_factory=dict)
    """The names of outbox columns that differ from Debezium's, such as `{payload: body}`."""

    @field_validator("route_to")
    @classmethod
    def _check_route_to(cls, text: str) -> str:
        if text.count(AGGREGATE) != 1 or set("{}") & set(text.replace(AGGREGATE, "")):
            raise make_value_error("value", f"must hold {AGGREGATE} once, and no other braces")
        return text


class TransactionSettings(Strict):
    """Keeps the targets of a source consistent at transaction boundaries. On Spark, the completeness watermark is only
    published. See docs/how-to/keep-transactions-together.md."""

    topic: str = Field(min_length=1)
    """The topic with the connector's transaction markers: `<topic.prefix>.transaction`. The source must read it."""
    max_transaction_bytes: Size = 64 << 20
    """Local engine only: a larger transaction becomes visible in parts."""
    patience: Duration = "60 seconds"
    """How long to wait for the rest of a transaction when no record arrives. Then it becomes visible in parts. On
    Spark, a later transaction is then published without it."""


class DatabaseSettings(Strict):
    """The source database, for `replicator doctor`, `backfill` and `diff`. The daemon connects to it only for `verify`."""

    dsn: SourceDsn
    """`postgresql://USER:PASSWORD@HOST:PORT/DATABASE` or `mariadb://USER:PASSWORD@HOST:PORT`."""
    publication: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """PostgreSQL: the publication that the connector reads. Required there."""
    slot: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,63}$")] | None = None
    """PostgreSQL: the connector's replication slot. Required there."""
    bigint_unsigned: Literal["long", "precise"] | None = unset("long")
    """MariaDB: the connector's `bigint.unsigned.handling.mode`. `long` by default, as in the connector."""

    @property
    def kind(self) -> Literal["postgresql", "mariadb"]:
        """The kind of the database, by its URL."""
        return "mariadb" if self.dsn.get_secret_value().startswith("mariadb:") else "postgresql"

    @model_validator(mode="after")
    def _check_kind(self) -> DatabaseSettings:
        if self.kind == "mariadb" and (self.publication or self.slot):
            raise make_value_error("database", "is MariaDB, which has no 'publication' and no 'slot': remove them")
        if self.kind == "postgresql" and not (self.publication and self.slot):
            raise make_value_error("database", "is PostgreSQL, and needs the connector's 'publication' and 'slot'")
        if self.kind == "postgresql" and self.bigint_unsigned:
            raise make_value_error("database", "is PostgreSQL, which has no unsigned numbers: remove 'bigint_unsigned'")
        return self


class ConnectSettings(Strict):
    """Kafka Connect, for `replicator doctor` and for `replicator diff` of MariaDB. The daemon never calls it."""

    url: HttpUrl
    """The worker's REST interface: `http://HOST:PORT`."""
    connector: str = Field(min_length=1)
    """The name of the connector."""


class SourceOptions(AdapterOptions):
    """Base of the options of sources: the keys that every source has, and what the pipeline adds to them."""

    format: str
    """The format of the records."""
    operation_column: ColumnName | None = None
    """`rows`, `dms_csv`, `dms_parquet`: the column with the operation of a row. DMS calls it `Op`, which is the default
    there. For `rows` there is no default."""
    sequence_columns: Annotated[list[ColumnName], Field(min_length=1, max_length=4)] | None = None
    """`rows`: the columns of whole numbers that order the changes, compared from left to right. By default the order of
    the source: offsets, files or table versions."""
    operations: dict[Literal["create", "update", "delete", "read"], OperationValues] | None = None
    """`rows`, `dms_csv`, `dms_parquet`: for each operation the values of `operation_column` that mean it."""
    csv: CsvSettings | None = None
    """The form of CSV text, for `dms_csv` and for CSV files of `rows`."""
    outbox: OutboxSettings | None = None
    """`debezium_outbox`: the table names of events, and the columns of the outbox table."""
    flattened: bool | None = unset(False)
    """`debezium_json`: true if ExtractNewRecordState has flattened the records to rows. Then set `tombstones` for their
    tables."""
    decimals: Literal["text", "base64"] | None = None
    """`debezium_json`: the form of decimals in JSON without a schema. `text`: digits, as with
    `decimal.handling.mode=string`. `base64`: the unscaled value, as with `precise`. By default a value that can be both
    is rejected."""
    replica_identity: ReplicaIdentity | dict[str, ReplicaIdentity] | None = None
    """`debezium_json`, `debezium_avro`: what PostgreSQL sends for a deleted row, the whole row (`full`) or its key
    (`default`). One value for all tables, or a mapping from names or globs. By default the values of each record
    decide."""
    registry: RegistrySettings | None = None
    """`debezium_avro`: the schema registry of the records. Required there."""
    transactions: TransactionSettings | None = None
    """`debezium_json`, `debezium_avro`: keep the targets consistent at transaction boundaries."""

    reads_broker: ClassVar[bool] = False
    """It reads topics of a broker, which may compact them. With other `topics` it reads these."""

    if TYPE_CHECKING:  # Each model describes it.
        transport: str

    batch_bytes: int = given(128 * 1024 * 1024, ge=1)
    """The most bytes of one batch."""
    batch_records: int = given(500_000, ge=1)
    """The most records of one batch. The pipeline never sets it."""

    @classmethod
    def find_defaults(cls, pipeline: str) -> Mapping[str, Any]:  # noqa: ARG003 - See `KafkaSettings`.
        """The values of absent keys that depend on the name of the pipeline."""
        return {}

    @property
    def stateful_table(self) -> str | None:
        """The table of which the transport keeps something between runs, and has to know the key; None for most."""
        return None

    @property
    def lake(self) -> str | None:
        """The folder of the table in a lake that it reads; None for other sources."""
        return None

    @property
    def is_whole(self) -> bool:
        """All that has accumulated is one batch."""
        return getattr(self, "mode", None) == "batch"

    @property
    def has_tombstones(self) -> bool:
        """True if records without a value delete rows by default, for tables without `tombstones`."""
        return False

    def for_decoder(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options of the decoder, from its keys in the section of the source."""
        return section


class RecordOptions(SourceOptions):
    """Records of other programs. Rows are in the order of their offsets, unless they have columns for that. Without a column
    for the operation, rows are new ones, and records without a value are deletes."""

    @property
    def has_tombstones(self) -> bool:
        return self.format == ROWS and self.operation_column is None and self.sequence_columns is None

    def for_decoder(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.format != ROWS:
            return section
        inserts = {} if "operation_column" in section else {"inserts_only": True}
        return {"sequence_columns": (), **inserts, **section}


# Decoders: the keys of a format in the section of a source, and the values that the pipeline adds.


class DecoderOptions(AdapterOptions):
    """Base of the options of decoders, one model for each format. Its keys are keys of each source with the format. A format
    without a model has the facts of this class, and its decoder gets a mapping with all keys."""

    model_config = ConfigDict(populate_by_name=True)

    transports: ClassVar[frozenset[str]] = frozenset({"kafka", "archive", "delta"})
    """The built-in transports that read it. These three have records that another program wrote, in any format."""
    in_connect_files: ClassVar[bool] = True
    """Files of Kafka Connect's sinks can contain its records."""
    is_rows: ClassVar[bool] = False
    """Records are rows that do not name their key."""
    has_schema_names: ClassVar[bool] = False
    """Every table is named SCHEMA.TABLE, or DATABASE.TABLE in a database without schemas."""
    has_plain_names: ClassVar[bool] = False
    """Its field names are only names that Avro allows."""
    has_transactions: ClassVar[bool] = False
    """It reads the marks of `transactions`."""
    has_compacted_topics: ClassVar[bool] = False
    """A topic can be compacted, and `tombstones: delete` then means that changes are missing."""
    has_backfills: ClassVar[bool] = False
    """Its sequence also orders the rows of a backfill."""
    masks_values: ClassVar[bool] = False
    """Its decoder can write records without private values (`ports.decoder.DecoderFeatures.mask_records`). Its model has the
    field `private`: for each table the masks of its columns."""
    reads_out_of_range: ClassVar[bool] = False
    """Its model has the field `out_of_range`: for each table the treatment of dates and times that no target can store."""
    reads_truncates: ClassVar[bool] = False
    """A truncate is a row. Its model has the field `truncates`: for each table the condition for such rows."""
    reload_step: ClassVar[str] = "Load the table with what writes its changes."
    """Another way to load a whole table, for formats without backfills. Only the writer of the changes can put rows into
    their order."""

    declared: dict[str, dict[str, str]] = given({}, alias="schema")
    """For each table (exact name or glob) its declared columns and their types."""
    keys: dict[str, tuple[str, ...]] = given({})
    """For each table its configured key."""
    # The pipeline also has `tombstones` (for each table `ignore` or `delete`) and the `limits` of one record.

    @classmethod
    def refuse(cls, why: str) -> ConfigProblem:
        return ConfigProblem(f"options of {cls.what}: {why}", next_step="Correct them in the source's settings.")

    @classmethod
    def list_source_keys(cls) -> frozenset[str]:
        """The keys of a source that mean something with this format, of those that do not with every format."""
        return frozenset((*cls.list_keys(), *(("transactions",) if cls.has_transactions else ())))


# Sinks.

Engine = Literal["local", "spark"]


class SinkOptions(AdapterOptions):
    """Base of the options of sinks: the keys that every sink has, and facts that the core needs of its kind."""

    is_event_log: ClassVar[bool] = False
    """It keeps records as they came. See `LogSinkOptions`."""
    is_lake: ClassVar[bool] = False
    """Its tables are files that show what changed, with the types of Delta. Some may be rewritten only by the engine that
    wrote them. Rebuilds and checkpoints are in the first lake. Its sink, and the store of dead letters with its name, take
    a mapping with only the `path` of a folder."""
    has_table_options: ClassVar[bool] = True
    """Its targets may have options of their own, such as `partition_by`."""
    holds_projections: ClassVar[bool] = False
    """Projections may have their tables in it: it is a lake, or its `SinkFeatures` have `gold_tables`."""
    in_seconds: ClassVar[frozenset[str]] = frozenset()
    """Durations that checks and projectors get as numbers."""

    if TYPE_CHECKING:  # Each model describes it.
        kind: str

    engines: list[Engine] = Field(["local", "spark"], min_length=1)
    """The engines that may write the sink. Any other engine is refused at the start."""

    @property
    def catalog_of(self) -> Engine | None:
        """The engine in whose catalog the targets have names; only that one can take them away. None: they have none."""
        return None

    @classmethod
    def place_dead_letters(cls, section: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: ARG003 - Of a store.
        """The `dead_letters` of a pipeline that names no store, in the sink of this section of the config; None: it holds
        none."""
        return None


class SnapshotSettings(Strict):
    """When checkpoints of lanes are stored. A replay of the event log then starts at the last checkpoint. Set `every`,
    `after_records` or both."""

    every: Duration | None = None
    """The time between two checkpoints of a lane. No checkpoint is stored if nothing has changed."""
    after_records: Count | None = None
    """The number of records between two checkpoints of a lane."""
    keep: Count = 2
    """How many checkpoints of each lane are kept. The oldest are deleted."""

    @model_validator(mode="after")
    def _check_schedule(self) -> SnapshotSettings:
        if self.every is None and self.after_records is None:
            raise make_value_error("schedule", "needs 'every' or 'after_records', or both")
        if self.every is not None and not to_timedelta(self.every):
            raise make_value_error("schedule", "has an 'every' that must be longer than none")
        return self


class LogSinkOptions(SinkOptions):
    """Base of the options of event logs."""

    is_event_log: ClassVar[bool] = True
    has_table_options: ClassVar[bool] = False

    @property
    def checkpoints(self) -> SnapshotSettings | None:
        """When checkpoints of its lanes are stored, in `folder`. None: only on request."""
        return None

    @property
    def log_retention(self) -> str | None:
        """The age at which records are deleted, with `checkpoints`. None: never."""
        return None

    @property
    def reader(self) -> str:
        """The transport that reads it. A log is read like any source, also within a period: `since`, `until`, `below`."""
        sentence = f"{self.what} cannot be read, since its package names no `reader`"
        raise ConfigProblem(sentence, next_step="Install a later version of its package.")

    def for_reader(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options of the reader, from the section of the log. `topics` and a period are added."""
        return section

    @property
    def folder(self) -> str | None:
        """The folder of this machine in which it is; None elsewhere."""
        return None

    @property
    def is_in_database(self) -> bool:
        """Anyone may delete its records, and only the local engine reads them. So it is by default with a log in no folder
        of this machine."""
        return self.folder is None


# Stores of the program, each one section of the config.


class StoreOptions(AdapterOptions):
    """Base of the options of `dead_letters` and of `event_store`: one model of all places that installed adapters have for
    them. Its entry point in `replicator.store_options` has the name of the section."""

    adapters: ClassVar[frozenset[str]] = frozenset()
    """The values of `adapter`."""

    if TYPE_CHECKING:  # Each model of dead letters describes it.
        patience: str

    @property
    def adapter(self) -> str:
        """The name of the adapter for the location in the config."""
        raise NotImplementedError
