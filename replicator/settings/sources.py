"""Settings of sources: one model per transport."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    WithJsonSchema,
    model_validator,
)

from replicator.ports.options import (
    ConfigPath,
    CsvSettings,
    DatabaseUrl,
    Dsn,
    Duration,
    HttpUrl,
    Into,
    LakePath,
    RegistrySettings,
    SecretText,
    Servers,
    Size,
    SourceDsn,
    StartFrom,
    StorageSettings,
    Strict,
    Text,
    Topic,
    ZonedTime,
    make_value_error,
    refuse_idle_storage,
    unset,
)

from .formats import FORMATS, ROWS

ReplicaIdentity: TypeAlias = Literal["full", "default"]


# The parts of sources.

SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")
OWNED_OPTIONS = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "group.id": "group_id",
    "auto.offset.reset": "start_from",
    "enable.auto.commit": "",
    "enable.auto.offset.store": "",
    "enable.partition.eof": "",
    "isolation.level": "",
}
"""librdkafka settings that correctness depends on, and the key to use instead."""

SERVERS = frozenset({"bootstrap.servers", "metadata.broker.list"})
OWNED_BY_DEAD_LETTERS = frozenset(
    {
        *OWNED_OPTIONS,
        "acks",
        "request.required.acks",
        "enable.idempotence",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "transactional.id",
    }
)
"""The same where rejected records are written: they are durable, or the write fails."""


def check_client_options(options: dict[str, str]) -> dict[str, str]:
    """Refuse options of librdkafka that have keys of their own."""
    for name in options:
        if name.startswith(SECURITY_PREFIXES):
            raise make_value_error(
                "option", "holds a security setting; write security settings under 'security', where they are kept secret"
            )
        if name in OWNED_OPTIONS:
            instead = OWNED_OPTIONS[name]
            hint = f"write '{instead}' of the source instead" if instead else "correctness depends on it"
            raise make_value_error("option", f"sets {name}, but only replicator may set it: {hint}")
    return options


def check_dead_letter_options(options: dict[str, str]) -> dict[str, str]:
    """As `check_client_options`, where rejected records are written and read."""
    for name in options:
        if name.startswith(SECURITY_PREFIXES):
            raise make_value_error(
                "option", "holds a security setting; write security settings under 'security', where they are kept secret"
            )
        if name in OWNED_BY_DEAD_LETTERS:
            hint = "write 'bootstrap_servers' instead" if name in SERVERS else "correctness depends on it"
            raise make_value_error("option", f"sets {name}, but only replicator may set it: {hint}")
    return options


def check_security_options(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    """Refuse all that is not about security."""
    if any(not name.startswith(SECURITY_PREFIXES) for name in options):
        raise make_value_error(
            "option", "takes librdkafka's security.*, sasl.* and ssl.* settings only; others go under 'options'"
        )
    return options


def _to_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


ONE_OR_SEVERAL = WithJsonSchema(
    {"anyOf": [{"type": ["string", "number"]}, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]}
)
CatalogTable = Annotated[str, Field(pattern=r"^[^.`\s]+(\.[^.`\s]+){1,2}$")]


ColumnName = Annotated[str, Field(min_length=1)]
OperationValues = Annotated[list[Text], BeforeValidator(_to_list), Field(min_length=1), ONE_OR_SEVERAL]


EVENT_COLUMNS = {
    **dict.fromkeys(("id", "aggregatetype", "aggregateid", "type", "payload"), "string"),
    "event_offset": "int64",
}
"""The columns of an outbox's events, and their types."""


class OutboxSettings(Strict):
    """The table names of outbox events, and the columns of the outbox table. See docs/how-to/read-an-outbox.md."""

    route_to: Annotated[str, Field(pattern=r"^[^{}]*\{aggregatetype\}[^{}]*$")] = "outbox.event.{aggregatetype}"
    """The table name of an event. It must contain `{aggregatetype}` once. Events of EventRouter have their topic as
    table name."""
    columns: dict[Literal["id", "aggregatetype", "aggregateid", "type", "payload"], ColumnName] = Field(default_factory=dict)
    """The names of outbox columns that differ from Debezium's, such as `{payload: body}`."""


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


class SourceSettings(Strict):
    """The keys of every source."""

    also_passed: ClassVar[frozenset[str]] = frozenset()
    """Keys of the decoder's that the transport has to know as well."""
    in_seconds: ClassVar[frozenset[str]] = frozenset()
    """Durations that the transport takes as a number."""
    format: str = Field(json_schema_extra={"enum": list(FORMATS)})
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

    @property
    def stateful_table(self) -> str | None:
        """The table of which the transport keeps something between runs, and has to know the key; None for most."""
        return None

    @property
    def is_whole(self) -> bool:
        """All that has accumulated is one batch."""
        return getattr(self, "mode", None) == "batch"

    @property
    def has_tombstones(self) -> bool:
        """True if records without a value delete rows by default, for tables without `tombstones`."""
        return False

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options of the decoder, from its own keys in the config, `said`."""
        return said


class RecordSettings(SourceSettings):
    """Records of other programs. Rows are in the order of their offsets, unless they have columns for that. Without a column
    for the operation, rows are new ones, and records without a value are deletes."""

    @property
    def has_tombstones(self) -> bool:
        return self.format == ROWS and self.operation_column is None and self.sequence_columns is None

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.format != ROWS:
            return said
        inserts = {} if "operation_column" in said else {"inserts_only": True}
        return {"sequence_columns": (), **inserts, **said}


class KafkaSettings(RecordSettings):
    """Records from Kafka topics."""

    transport: Literal["kafka"]
    bootstrap_servers: Servers
    """HOST:PORT of one or more brokers, with commas between them."""
    topics: list[Topic] = Field(min_length=1)
    """Topic names, globs, or regular expressions that begin with `^`. New matching topics are found while the daemon
    runs."""
    group_id: str = Field(default_factory=str, min_length=1)  # See `defaults`.
    """The consumer group whose offsets show the progress. By default `replicator-PIPELINE`. Positions are stored in
    the sinks."""
    start_from: StartFrom = "earliest"
    """The start of lanes without a position: `earliest`, `latest`, or a time with its zone."""
    security: Annotated[dict[str, SecretText], AfterValidator(check_security_options)] = Field(default_factory=dict)
    """librdkafka's `security.*`, `sasl.*` and `ssl.*` settings. The values are secrets."""
    options: Annotated[dict[str, Text], AfterValidator(check_client_options)] = Field(default_factory=dict)
    """Any other librdkafka setting."""
    max_records_per_trigger: int = Field(500_000, ge=1)
    """Spark only: the most offsets of one micro-batch."""
    trigger: Duration = "0 seconds"
    """Spark only: the time between two micro-batches. Longer means more rows in each MERGE."""
    database: DatabaseSettings | None = None
    """The PostgreSQL or MariaDB database of the records, for `replicator doctor` and `replicator backfill`."""
    connect: ConnectSettings | None = None
    """The Kafka Connect worker that writes the topics, for `replicator doctor` and for `replicator diff` of MariaDB."""


Mode = Literal["stream", "batch"]


class ArchiveSettings(RecordSettings):
    """Recorded topics as JSON Lines (also `.gz`) or Parquet, or the files of Kafka Connect's sinks."""

    in_seconds: ClassVar[frozenset[str]] = frozenset({"settle", "look_every"})

    transport: Literal["archive"]
    path: LakePath
    """A file, a folder, a glob or `s3://BUCKET/FOLDER`."""
    files: Literal["recorded", "connect", "lines"] | None = unset("recorded")
    """`recorded`: files of `replicator record`. `connect`: files of object-store sinks, named
    `TOPIC+PARTITION+OFFSET.json`. `lines`: the file of Kafka's file sink, with one value in each line."""
    topic: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]{1,249}$")
    """With `files: lines`: the topic name of the records. Required there."""
    settle: Duration | None = unset("10 seconds")
    """With `files: connect`: a file is read when it has not changed for this time."""
    mode: Mode | None = unset("stream")
    """`stream`: batches of limited size. `batch`: everything that is there in one batch, with one merge for each
    table."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    look_every: Duration | None = unset("10 seconds")
    """The time between two listings of files. Changes in local folders are seen at once."""

    @model_validator(mode="after")
    def _check_storage(self) -> ArchiveSettings:
        refuse_idle_storage(self.path, self.storage)
        return self


class FilesSettings(SourceSettings):
    """Folders of files. For AWS DMS: CSV (also `.gz`) or Parquet files in SCHEMA/TABLE, named after their time. For
    `rows`: folders with the names of tables, and files named after a number or time."""

    also_passed: ClassVar[frozenset[str]] = frozenset({"csv", "format", "operation_column", "files"})
    in_seconds: ClassVar[frozenset[str]] = frozenset({"settle", "look_every"})

    transport: Literal["files"]
    path: LakePath
    """A file, a folder, a glob or `s3://BUCKET/FOLDER`."""
    files: Literal["csv", "jsonl", "parquet"] | None = None
    """With format `rows`, required there: CSV with a header row, JSON Lines (both also `.gz`) or Parquet."""
    mode: Mode | None = unset("stream")
    """`stream`: batches of limited size. `batch`: everything that is there in one batch, with one merge for each
    table."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    settle: Duration | None = unset("10 seconds")
    """A file is read when it has not changed for this time. No wait in an object store."""
    look_every: Duration | None = unset("10 seconds")
    """The time between two listings of files. Changes in local folders are seen at once."""

    through: list[str] | None = None
    """File names below `path`. Only these files are read, and earlier files of the same tables."""

    @model_validator(mode="after")
    def _check_storage(self) -> FilesSettings:
        refuse_idle_storage(self.path, self.storage)
        return self

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options without `csv`, which only the reader of the files needs: the decoder gets rows as JSON."""
        if self.format != ROWS:
            return said
        mine = {"inserts_only": "operation_column" not in said, "text_values": self.files == "csv", "in_files": True}
        return {"sequence_columns": (), **mine, **{key: value for key, value in said.items() if key != "csv"}}


class DeltaSourceSettings(SourceSettings):
    """A Delta table: the event log of a pipeline, read as its recorded topics. With format `rows`, the rows of any
    Delta table."""

    also_passed: ClassVar[frozenset[str]] = frozenset({"format", "operation_column", "sequence_columns"})

    transport: Literal["delta"]
    path: LakePath | None = None
    """The folder of the table, its `file://` URL or `s3://BUCKET/FOLDER`."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    topics: list[Topic] | None = Field(default=None, min_length=1)
    """Event logs: the recorded topics to read, as names, globs or regular expressions that begin with `^`. By default
    all."""
    table: CatalogTable | None = None
    """Format `rows` on Spark, instead of `path`: the table as `[CATALOG.]SCHEMA.TABLE`."""
    mode: Mode | None = unset("stream")
    """`stream`: batches of limited size. `batch`: everything that is there in one batch, with one merge for each
    table."""
    changes: Literal["appended", "feed"] | None = unset("appended")
    """Format `rows`: read appended rows (`appended`) or the table's change data feed (`feed`)."""
    start_from: Literal["earliest", "latest"] | None = unset("earliest")
    """Format `rows`: where lanes without a position start. `earliest`: with the rows of the table. `latest`: with
    later changes."""
    since: ZonedTime | None = None
    """Event logs: only records with this time at the source or later. Records without a time are included."""
    until: ZonedTime | None = None
    """Event logs: only records with this time at the source or earlier. Records without a time are included."""

    @model_validator(mode="after")
    def _check_storage(self) -> DeltaSourceSettings:
        refuse_idle_storage(self.path, self.storage)
        return self


class SnapshotsSettings(SourceSettings):
    """Full copies of one table, which are compared with each other. They are files at `path`, or answers of a database
    at `dsn`."""

    also_passed: ClassVar[frozenset[str]] = frozenset({"csv"})

    transport: Literal["snapshots"]
    path: ConfigPath | None = None
    """The folder of the copies. Its name is the table's name. File names end in their versions, such as
    `2024-01-05.parquet`."""
    files: Literal["parquet", "csv", "jsonl"] | None = unset("parquet")
    """With `path`: the kind of files. For `csv` and `jsonl`, declare the columns in `schema` of the table."""
    dsn: Dsn | None = None
    """Instead of `path`: the database, as `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    table: Into | None = None
    """With `dsn`: the table, as TABLE or SCHEMA.TABLE. It also names the stream."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """With `dsn`: the SELECT whose rows are one copy. By default all rows of the table."""
    every: Duration | None = unset("5 minutes")
    """With `dsn`: the time between two copies."""
    allow_empty: bool = False
    """True accepts a copy without rows, which deletes every row. Otherwise the program stops."""

    @property
    def stateful_table(self) -> str | None:
        return self.table or Path(self.path or "").name

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `SourceSettings.for_decoder`: records are made by who compares."""
        known = {key: value for key, value in said.items() if key != "csv"}
        return {**known, "operation_column": "_change", "sequence_columns": ("_snapshot",)}


class QuerySettings(SourceSettings):
    """A table or query of a database that SQLAlchemy supports. It is queried again and again for rows with a higher
    cursor value."""

    transport: Literal["query"]
    dsn: DatabaseUrl
    """The database as SQLAlchemy writes it: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, `mariadb://...` or
    `mysql://...`."""
    table: Into
    """The table, as TABLE or SCHEMA.TABLE. It also names the stream."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """The SELECT to run. Declare its columns in `schema` of the table. By default all columns of the table."""
    cursor_column: ColumnName
    """The column that shows new rows: a time of change, or an increasing number."""
    start_after: int | str | None = None
    """Rows with this value of `cursor_column` or a lower one are never read, such as `2019-11-20 00:00:00`. By default
    all are."""
    overlap: Annotated[int, Field(ge=0)] | Duration | None = None
    """How far below the highest value each reading starts, for transactions that commit late. Default: 5 minutes for
    times, 1000 for numbers."""
    every: Duration | None = unset("1 minute")
    """The time between two readings."""
    ranges: Annotated[int, Field(ge=1, le=64)] = 1
    """How many connections do the first reading, each for a range of `cursor_column`."""

    @property
    def stateful_table(self) -> str | None:
        return self.table

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `SourceSettings.for_decoder`: records are made by who asks."""
        return {**said, "operation_column": "_change", "sequence_columns": ("_snapshot",)}


class PluginSourceSettings(SourceSettings):
    """A transport of an installed package; its own keys are checked by its adapter."""

    model_config = ConfigDict(extra="allow")
    transport: str


BuiltInSource: TypeAlias = (
    KafkaSettings | ArchiveSettings | FilesSettings | DeltaSourceSettings | SnapshotsSettings | QuerySettings
)
SOURCES: dict[str, type[SourceSettings]] = {
    "kafka": KafkaSettings,
    "archive": ArchiveSettings,
    "files": FilesSettings,
    "delta": DeltaSourceSettings,
    "snapshots": SnapshotsSettings,
    "query": QuerySettings,
}


def _get_transport(value: Any) -> str:
    name = value.get("transport") if isinstance(value, dict) else getattr(value, "transport", None)
    return name if isinstance(name, str) and name in SOURCES else "plugin"


Source = Annotated[
    Annotated[KafkaSettings, Tag("kafka")]
    | Annotated[ArchiveSettings, Tag("archive")]
    | Annotated[FilesSettings, Tag("files")]
    | Annotated[DeltaSourceSettings, Tag("delta")]
    | Annotated[SnapshotsSettings, Tag("snapshots")]
    | Annotated[QuerySettings, Tag("query")]
    | Annotated[PluginSourceSettings, Tag("plugin")],
    Discriminator(_get_transport),
]
