"""The parts of the settings of sources."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, WithJsonSchema, model_validator

from .fields import ConfigPath, Duration, HttpUrl, Secret, Size, SourceDsn, Strict, make_value_error, unset

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


def _to_text(value: Any) -> Any:
    """librdkafka takes text: true becomes "true", 5 becomes "5"."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


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


def _check_character(value: str) -> str:
    if len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise make_value_error("value", "must be one ASCII character, and no line end")
    return value


def _to_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})
Text = Annotated[str, BeforeValidator(_to_text), SCALAR]
ONE_OR_SEVERAL = WithJsonSchema(
    {"anyOf": [{"type": ["string", "number"]}, {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}]}
)
SecretText = Annotated[Secret, BeforeValidator(_to_text), SCALAR]


CatalogTable = Annotated[str, Field(pattern=r"^[^.`\s]+(\.[^.`\s]+){1,2}$")]


ColumnName = Annotated[str, Field(min_length=1)]
Character = Annotated[
    str, AfterValidator(_check_character), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 1})
]
OperationValues = Annotated[list[Text], BeforeValidator(_to_list), Field(min_length=1), ONE_OR_SEVERAL]


class CsvSettings(Strict):
    """The form of CSV text. The defaults are those of AWS DMS."""

    header: bool = False
    """True if the first row of every file names the columns. Otherwise `schema` of the table names them, in their
    order."""
    delimiter: Character = ","
    """The character between two values."""
    quote: Character | Literal["none"] = '"'
    """The character around quoted values, doubled inside them. `none` if nothing is quoted (`Rfc4180=false`)."""
    escape: Character | None = None
    """The character that takes away the special meaning of the next one. By default there is none."""
    null_value: str = ""
    """The unquoted text that means NULL (`CsvNullValue`)."""
    unsent_value: str | None = None
    """The text of a value that was not sent (`CsvNoSupValue`). By default there is none."""
    inserts_only: bool = False
    """True if rows of change files can lack an operation because all are inserts (`CdcInsertsOnly`)."""


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


class RegistrySettings(Strict):
    """The schema registry that contains the schemas of the records."""

    url: HttpUrl
    """The URL of Confluent's API: `http://HOST:PORT`. For Apicurio: `http://HOST:PORT/apis/ccompat/v7`."""
    user: Annotated[str, Field(min_length=1)] | None = None
    """The user of basic authentication, together with `password`."""
    password: SecretText | None = None
    """The password of `user`."""
    ca: ConfigPath | None = None
    """A PEM file with the certificates of the authority that signed the registry's certificate."""

    @model_validator(mode="after")
    def _check_whole(self) -> RegistrySettings:
        if (self.user is None) != (self.password is None):
            raise make_value_error("registry", "needs both 'user' and 'password', or none of them")
        if ":" in (self.user or ""):
            raise make_value_error("registry", "has a 'user' with a colon, which basic authentication cannot send")
        if self.ca is not None and not self.url.startswith("https://"):
            raise make_value_error("registry", "has a 'ca', which means nothing without https:// in 'url'")
        return self


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
