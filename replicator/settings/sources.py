"""Settings of sources: one model per transport."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from .fields import (
    ConfigPath,
    DatabaseUrl,
    Dsn,
    Duration,
    Into,
    LakePath,
    Servers,
    StartFrom,
    Strict,
    Topic,
    ZonedTime,
)
from .formats import FORMATS, ROWS
from .source_models import (
    CatalogTable,
    ColumnName,
    ConnectSettings,
    CsvSettings,
    DatabaseSettings,
    OperationValues,
    OutboxSettings,
    RegistrySettings,
    SecretText,
    Text,
    TransactionSettings,
    check_client_options,
    check_security_options,
)
from .storage import StorageSettings, refuse_idle_storage

ReplicaIdentity: TypeAlias = Literal["full", "default"]


class SourceSettings(Strict):
    """What every source has."""

    also_passed: ClassVar[frozenset[str]] = frozenset()
    """Keys of the decoder's that the transport has to know as well."""
    in_seconds: ClassVar[frozenset[str]] = frozenset()
    """Durations that the transport takes as a number."""
    format: str = Field(json_schema_extra={"enum": list(FORMATS)})
    """How records are encoded."""
    operation_column: ColumnName | None = None
    """With formats rows, dms_csv and dms_parquet: the column that says what became of a row."""
    sequence_columns: Annotated[list[ColumnName], Field(min_length=1, max_length=4)] | None = None
    """With format rows: the columns of whole numbers that order the changes, compared from left to right."""
    operations: dict[Literal["create", "update", "delete", "read"], OperationValues] | None = None
    """With formats rows, dms_csv and dms_parquet: which values of the operation column mean what."""
    csv: CsvSettings | None = None
    """With format dms_csv, and with CSV files of rows or snapshots: how the text is written."""
    outbox: OutboxSettings | None = None
    """With format debezium_outbox: what tables of events, and the columns of the outbox table, are called."""
    flattened: bool | None = None
    """With format debezium_json: whether records are rows that ExtractNewRecordState flattened. Their tables say with
    `tombstones` what becomes of records without a value."""
    decimals: Literal["text", "base64"] | None = None
    """With format debezium_json, of records without schema: what a decimal in JSON text is. text: digits, as with
    decimal.handling.mode=string. base64: the unscaled value, as with precise, the connector's default."""
    replica_identity: ReplicaIdentity | dict[str, ReplicaIdentity] | None = None
    """With formats debezium_json and debezium_avro: what PostgreSQL sends of a row that is deleted, for all tables or by
    table (names or globs). full: the whole row. default: its key. Without it each record is judged by its own values."""
    registry: RegistrySettings | None = None
    """With format debezium_avro: the schema registry that its records name schemas of."""
    transactions: TransactionSettings | None = None
    """With formats debezium_json and debezium_avro: holds the targets together at the source's transactions; on Spark they
    are only told."""

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
        """Whether records without a value delete rows where their table does not say."""
        return False

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the decoder is told of the keys that are its own, which are `said` in the config."""
        return said


class RecordSettings(SourceSettings):
    """Records that somebody else wrote. Rows are in the order of their offsets, unless they have columns for that. Without a
    column that says what became of them, they are new ones, and records without a value deletes."""

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
    """Topic names; globs, or regular expressions that start with ^. New topics that match are picked up while running."""
    group_id: str = Field(default_factory=str, min_length=1)  # See `defaults`.
    """The consumer group whose offsets show progress, by default `replicator-PIPELINE`; positions are kept in the sinks."""
    start_from: StartFrom = "earliest"
    """Where lanes without a position start: earliest, latest, or a time with its zone."""
    security: Annotated[dict[str, SecretText], AfterValidator(check_security_options)] = Field(default_factory=dict)
    """librdkafka's security.*, sasl.* and ssl.* settings."""
    options: Annotated[dict[str, Text], AfterValidator(check_client_options)] = Field(default_factory=dict)
    """Any other librdkafka setting."""
    max_records_per_trigger: int = Field(500_000, ge=1)
    """On Spark: the most offsets of one micro-batch."""
    trigger: Duration = "0 seconds"
    """On Spark: the time between two micro-batches, such as 30 seconds. Longer means more rows in each MERGE."""
    database: DatabaseSettings | None = None
    """The PostgreSQL or MariaDB database that the records come from, for `doctor` to look at and `backfill` to read."""
    connect: ConnectSettings | None = None
    """The Kafka Connect worker that writes the topics, for `doctor` to look at."""


Mode = Literal["stream", "batch"]


class ArchiveSettings(RecordSettings):
    """Recorded topics: JSON Lines (optionally .gz) or Parquet; or the files of Kafka Connect's sinks to object stores."""

    in_seconds: ClassVar[frozenset[str]] = frozenset({"settle", "look_every"})

    transport: Literal["archive"]
    path: LakePath
    """A file, folder or glob, or s3://BUCKET/FOLDER."""
    files: Literal["recorded", "connect", "lines"] | None = None
    """recorded (the default): what `replicator record` writes; connect: files of sinks, as TOPIC+PARTITION+OFFSET.json;
    lines: the one file of Kafka's file sink, which has a value in each line."""
    topic: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]{1,249}$")
    """With files lines: what to call the topic of its records."""
    settle: Duration | None = None
    """With files connect: how long nobody must have written to a file before it is read; 10 seconds when not said."""
    mode: Mode | None = None
    """stream (the default): in batches of limited size; batch: all that has accumulated at once, one merge per table."""
    storage: StorageSettings | None = None
    """With an object store: what reaches it."""
    look_every: Duration | None = None
    """How often files are listed; 10 seconds when not said. Changes of folders on this machine are noticed at once."""

    @model_validator(mode="after")
    def _check_storage(self) -> ArchiveSettings:
        refuse_idle_storage(self.path, self.storage)
        return self


class FilesSettings(SourceSettings):
    """The folders that AWS DMS writes: CSV files (optionally .gz) or Parquet named after their time, in SCHEMA/TABLE. With
    format rows, folders that are called as tables, with files named after their number or time."""

    also_passed: ClassVar[frozenset[str]] = frozenset({"csv", "format", "operation_column", "files"})
    in_seconds: ClassVar[frozenset[str]] = frozenset({"settle", "look_every"})

    transport: Literal["files"]
    path: LakePath
    """A file, a folder with those in it, or a glob; or s3://BUCKET/FOLDER."""
    files: Literal["csv", "jsonl", "parquet"] | None = None
    """With format rows: what the files are: CSV with a header row or JSON Lines, each optionally .gz, or Parquet."""
    mode: Mode | None = None
    """stream (the default): in batches of limited size; batch: all that has accumulated at once, one merge per table."""
    storage: StorageSettings | None = None
    """With an object store: what reaches it."""
    settle: Duration | None = None
    """How long nobody must have written to a file before it is read; 10 seconds when not said, none in an object store."""
    look_every: Duration | None = None
    """How often files are listed; 10 seconds when not said. Changes of folders on this machine are noticed at once."""

    through: list[str] | None = None
    """Names of files below path: only these are read, and those of their tables that come before them."""

    @model_validator(mode="after")
    def _check_storage(self) -> FilesSettings:
        refuse_idle_storage(self.path, self.storage)
        return self

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is CSV, who reads the files has to know; the rows come as JSON."""
        if self.format != ROWS:
            return said
        mine = {"inserts_only": "operation_column" not in said, "text_values": self.files == "csv", "in_files": True}
        return {"sequence_columns": (), **mine, **{key: value for key, value in said.items() if key != "csv"}}


class DeltaSourceSettings(SourceSettings):
    """A Delta table: the event log of a pipeline, read as the topics that it recorded; with format rows, the rows of any."""

    also_passed: ClassVar[frozenset[str]] = frozenset({"format", "operation_column", "sequence_columns"})

    transport: Literal["delta"]
    path: LakePath | None = None
    """The folder of the table (of an event log: the one that an `event_log` sink writes), its file:// URL, or
    s3://BUCKET/FOLDER."""
    storage: StorageSettings | None = None
    """With an object store: what reaches it."""
    topics: list[Topic] | None = Field(default=None, min_length=1)
    """Of an event log: recorded topics (names; globs, or regular expressions that start with ^); all when not said."""
    table: CatalogTable | None = None
    """With format rows, on Spark, instead of path: the table as [CATALOG.]SCHEMA.TABLE."""
    mode: Mode | None = None
    """stream (the default): in batches of limited size; batch: all that has accumulated at once, one merge per table."""
    changes: Literal["appended", "feed"] | None = None
    """With format rows: the rows that are appended (the default), or the table's change data feed."""
    start_from: Literal["earliest", "latest"] | None = None
    """With format rows, where lanes without a position start: earliest, with the table as it is; latest, with what changes
    from then on."""
    since: ZonedTime | None = None
    """Of an event log: only records whose time at the source is this one or later, as far as they tell it."""
    until: ZonedTime | None = None
    """Of an event log: only records whose time at the source is this one or earlier, as far as they tell it."""

    @model_validator(mode="after")
    def _check_storage(self) -> DeltaSourceSettings:
        refuse_idle_storage(self.path, self.storage)
        return self


class SnapshotsSettings(SourceSettings):
    """Full snapshots of one table, which are compared with each other: files, or what a database is asked for."""

    also_passed: ClassVar[frozenset[str]] = frozenset({"csv"})

    transport: Literal["snapshots"]
    path: ConfigPath | None = None
    """The folder of the snapshots, called as the table. Their names end in their versions: 2024-01-05.parquet."""
    files: Literal["parquet", "csv", "jsonl"] | None = None
    """With path: what the files are; parquet when not said. Columns of the others are declared as `schema` of the table."""
    dsn: Dsn | None = None
    """Instead of path: the database that is asked, as postgresql://USER:PASSWORD@HOST:PORT/DATABASE."""
    table: Into | None = None
    """With dsn: the table, as TABLE or SCHEMA.TABLE, and what the stream is called."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """With dsn: the SELECT whose rows are a snapshot; without it, all rows of the table."""
    every: Duration | None = None
    """With dsn: the time between two snapshots, such as 5 minutes, the default."""
    allow_empty: bool = False
    """Whether a snapshot without rows is taken in, which deletes every row; otherwise the program stops."""

    @property
    def stateful_table(self) -> str | None:
        return self.table or Path(self.path or "").name

    def for_decoder(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `SourceSettings.for_decoder`: records are made by who compares."""
        known = {key: value for key, value in said.items() if key != "csv"}
        return {**known, "operation_column": "_change", "sequence_columns": ("_snapshot",)}


class QuerySettings(SourceSettings):
    """A table or query of any database that SQLAlchemy reaches, asked again and again for what is new by a column."""

    transport: Literal["query"]
    dsn: DatabaseUrl
    """The database as SQLAlchemy writes it: postgresql://USER:PASSWORD@HOST:PORT/DATABASE, mariadb://... or mysql://..."""
    table: Into
    """The table, as TABLE or SCHEMA.TABLE, and what the stream is called."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """The SELECT that is asked, whose columns the table declares in `schema`; without it, all columns of the table."""
    cursor_column: ColumnName
    """The column that says what is new: a time of change, or a number that counts up."""
    start_after: int | str | None = None
    """Rows at or below this value of cursor_column are never read, such as 2019-11-20 00:00:00; all are when not said."""
    overlap: Annotated[int, Field(ge=0)] | Duration | None = None
    """How far below the highest value that was read it is read again, for transactions that commit late: 5 minutes (the
    default) of times, or 1000 (the default) of numbers."""
    every: Duration | None = None
    """The time between two readings, such as 1 minute, the default."""
    ranges: Annotated[int, Field(ge=1, le=64)] = 1
    """How many connections read side by side at first, each a range of cursor_column."""

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
