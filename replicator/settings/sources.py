"""Settings of sources: one model per transport."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, SecretStr, Tag, WithJsonSchema

from .fields import ConfigPath, Dsn, Duration, HttpUrl, Into, Servers, Size, StartFrom, Strict, Topic, _refused

FORMATS = ("debezium_json", "debezium_avro", "dts_avro", "dms_csv", "canal_json", "maxwell_json", "ogg_json", "rows")
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


def _text(value: Any) -> Any:
    """librdkafka takes text: true becomes "true", 5 becomes "5"."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _options(options: dict[str, str]) -> dict[str, str]:
    for name in options:
        if name.startswith(SECURITY_PREFIXES):
            raise _refused("option", "holds a security setting; write those under 'security', where they are kept secret")
        if name in OWNED_OPTIONS:
            instead = OWNED_OPTIONS[name]
            hint = f"write '{instead}' of the source instead" if instead else "correctness depends on it"
            raise _refused("option", f"sets {name}, which is not yours to set: {hint}")
    return options


def _security(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    if any(not name.startswith(SECURITY_PREFIXES) for name in options):
        raise _refused("option", "takes librdkafka's security.*, sasl.* and ssl.* settings only; others go under 'options'")
    return options


def _character(value: str) -> str:
    if len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise _refused("value", "must be one ASCII character, and no line end")
    return value


def _several(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})
Text = Annotated[str, BeforeValidator(_text), SCALAR]
ONE_OR_SEVERAL = WithJsonSchema(
    {"anyOf": [{"type": ["string", "number"]}, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]}
)
SecretText = Annotated[SecretStr, BeforeValidator(_text), SCALAR]


CatalogTable = Annotated[str, Field(pattern=r"^[^.`\s]+(\.[^.`\s]+){1,2}$")]


ColumnName = Annotated[str, Field(min_length=1)]
Character = Annotated[str, AfterValidator(_character), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 1})]
OperationValues = Annotated[list[Text], BeforeValidator(_several), Field(min_length=1), ONE_OR_SEVERAL]


class CsvSettings(Strict):
    """How CSV is written; the defaults are those of AWS DMS."""

    header: bool = False
    """Whether the first row of every file names the columns. Without, `schema` of the table does, in their order."""
    delimiter: Character = ","
    """What stands between two values."""
    quote: Character | Literal["none"] = '"'
    """What may stand around a value, doubled inside; none where nothing does (Rfc4180=false)."""
    escape: Character | None = None
    """What takes its meaning from the character behind it."""
    null_value: str = ""
    """The text, outside quotes, that means NULL (CsvNullValue)."""
    unsent_value: str | None = None
    """The text that means that a value was not sent (CsvNoSupValue)."""
    inserts_only: bool = False
    """Whether rows of files of changes may lack an operation, as all are inserts (CdcInsertsOnly)."""


class TransactionSettings(Strict):
    """Holds the targets of a source together at its transactions: see docs/transactions.md."""

    topic: str = Field(min_length=1)
    """The topic in which the connector tells where transactions end: <topic.prefix>.transaction."""
    max_transaction_bytes: Size = 64 << 20
    """A transaction of more bytes becomes visible in parts."""
    patience: Duration = "60 seconds"
    """How long nothing may come of a transaction that is waited for, before it becomes visible in parts."""


class SourceSettings(Strict):
    """What every source has."""

    also_told: ClassVar[frozenset[str]] = frozenset()
    """Keys of the decoder's that the transport has to know as well."""
    decoded_with: ClassVar[Mapping[str, Any]] = {}
    """Keys of the decoder's that the transport decides."""
    not_decoded: ClassVar[frozenset[str]] = frozenset()
    """Keys of other decoders that mean something to the transport."""
    format: str = Field(json_schema_extra={"enum": list(FORMATS)})
    """How records are encoded."""
    operation_column: ColumnName | None = None
    """With formats rows and dms_csv: the column that says what became of a row."""
    sequence_columns: Annotated[list[ColumnName], Field(min_length=1, max_length=4)] | None = None
    """With format rows: the columns of whole numbers that order the changes, compared from left to right."""
    operations: dict[Literal["create", "update", "delete", "read"], OperationValues] | None = None
    """With formats rows and dms_csv: which values of the operation column mean what."""
    csv: CsvSettings | None = None
    """With format dms_csv, and with snapshots in CSV files: how the text is written."""
    transactions: TransactionSettings | None = None
    """With format debezium_json, on the local engine: holds the targets together at the source's transactions."""

    @property
    def kept_table(self) -> str | None:
        """The table of which the transport keeps something between runs, and has to know the key; None for most."""
        return None


class DatabaseSettings(Strict):
    """What `doctor` looks at in the source database; the daemon never connects to it."""

    dsn: Dsn
    publication: str = Field(min_length=1, max_length=63)
    """The publication that the connector reads."""
    slot: str = Field(pattern=r"^[a-z0-9_]{1,63}$")
    """The connector's replication slot."""


class ConnectSettings(Strict):
    """What `doctor` looks at in Kafka Connect; the daemon never asks it."""

    url: HttpUrl
    """The worker's REST interface: http://HOST:PORT."""
    connector: str = Field(min_length=1)
    """The connector's name."""


class KafkaSettings(SourceSettings):
    """Records from Kafka topics."""

    transport: Literal["kafka"]
    bootstrap_servers: Servers
    """HOST:PORT of one or more brokers, with commas between them."""
    topics: list[Topic] = Field(min_length=1)
    """Topic names; globs, or regular expressions that start with ^. New topics that match are picked up while running."""
    group_id: str = Field("cdc-python-consumer", min_length=1)
    """The consumer group whose offsets show progress; positions are kept in the sinks."""
    start_from: StartFrom = "earliest"
    """Where lanes without a position start: earliest, latest, or a time with its zone."""
    security: Annotated[dict[str, SecretText], AfterValidator(_security)] = Field(default_factory=dict)
    """librdkafka's security.*, sasl.* and ssl.* settings."""
    options: Annotated[dict[str, Text], AfterValidator(_options)] = Field(default_factory=dict)
    """Any other librdkafka setting."""
    max_records_per_trigger: int = Field(500_000, ge=1)
    """On Spark: the most offsets of one micro-batch."""
    trigger: Duration = "0 seconds"
    """On Spark: the time between two micro-batches, such as 30 seconds. Longer means more rows in each MERGE."""
    database: DatabaseSettings | None = None
    """The database that the records come from, for `doctor` to look at."""
    connect: ConnectSettings | None = None
    """The Kafka Connect worker that writes the topics, for `doctor` to look at."""


class ArchiveSettings(SourceSettings):
    """Recorded topics: JSON Lines (optionally .gz) or Parquet."""

    transport: Literal["archive"]
    path: ConfigPath
    """A file, folder, glob or object-store URL."""


class FilesSettings(SourceSettings):
    """The folders that AWS DMS writes: CSV files (optionally .gz) named after their time, in SCHEMA/TABLE."""

    also_told: ClassVar[frozenset[str]] = frozenset({"csv"})

    transport: Literal["files"]
    path: ConfigPath
    """A file, a folder with those in it, or a glob."""


class DeltaSourceSettings(SourceSettings):
    """A Delta table: the event log of a pipeline, read as the topics that it recorded; with format rows, the rows of any."""

    also_told: ClassVar[frozenset[str]] = frozenset({"format", "operation_column", "sequence_columns"})

    transport: Literal["delta"]
    path: ConfigPath | None = None
    """The folder of the table (of an event log: the one that an `event_log` sink writes), or its file:// URL."""
    topics: list[Topic] | None = Field(default=None, min_length=1)
    """Of an event log: recorded topics (names; globs, or regular expressions that start with ^); all when not said."""
    table: CatalogTable | None = None
    """With format rows, on Spark, instead of path: the table as [CATALOG.]SCHEMA.TABLE."""
    changes: Literal["appended", "feed"] | None = None
    """With format rows: the rows that are appended (the default), or the table's change data feed."""
    start_from: Literal["earliest", "latest"] | None = None
    """With format rows, where lanes without a position start: earliest, with the table as it is; latest, with what changes
    from then on."""


class SnapshotsSettings(SourceSettings):
    """Full snapshots of one table, which are compared with each other: files, or what a database is asked for."""

    also_told: ClassVar[frozenset[str]] = frozenset({"csv"})
    decoded_with: ClassVar[Mapping[str, Any]] = {"operation_column": "_change", "sequence_columns": ("_snapshot",)}
    not_decoded: ClassVar[frozenset[str]] = frozenset({"csv"})

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
    def kept_table(self) -> str | None:
        """See `SourceSettings`."""
        return self.table or Path(self.path or "").name


class QuerySettings(SourceSettings):
    """A query polled by a cursor column."""

    transport: Literal["query"]
    dsn: Dsn
    cursor_column: str
    start_after: str | None = None


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


def _transport(value: Any) -> str:
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
    Discriminator(_transport),
]
