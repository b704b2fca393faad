"""Types and models of options, for the config and for adapters: names, paths, addresses, secrets, object stores. Every
error that they raise is free of the value itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    GetPydanticSchema,
    SecretStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from replicator.domain.patterns import describe_malformed
from replicator.domain.table import describe_target_problem

SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
DURATION = r"^\d{1,7} (milliseconds?|seconds?|minutes?|hours?|days?)$"
LAST_PORT = 65535
CATALOG = "spark_catalog"
STORE_URL = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._=-]+)*/?")
NO_STORES: frozenset[str] = frozenset()
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "adl", "abfs", "abfss"})
"""Schemes of URLs that are known as paths."""
LAKE_STORES = frozenset({"s3", "s3a"})
"""The object stores that can hold the tables of a sink. Others, and any for another path, are not yet supported."""
SECRET_KEYS = frozenset({"dsn", "token", "password", "access_key_id", "secret_access_key", "session_token"})
SECRET_PARENTS = frozenset({"security"})
SPARK_SECRETS = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of Spark's options whose values Spark itself hides (the default of `spark.redaction.regex`)."""

IS_INSTANCE = GetPydanticSchema(
    lambda source, _: core_schema.json_or_python_schema(core_schema.any_schema(), core_schema.is_instance_schema(source))
)
"""The annotation of an object that only programs pass. An `InstanceOf` of pydantic would also build a schema of its
fields. Nothing uses it, and it takes a fifth of a second at each start."""


class Strict(BaseModel):
    """Base of all settings models: immutable, unknown keys refused, input never shown in errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True, serialize_by_alias=True
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """The keys with values, without the many unset ones."""
        return ((name, value) for name, value in super().__repr_args__() if value is not None and value != {})


def unset(default: Any) -> Any:
    """The field of a key that is None if it is absent. Other code applies the `default`; here it is for the schema."""
    return Field(None, json_schema_extra={"default": default})


def is_secret(path: tuple[str | int, ...]) -> bool:
    """The value at `path` is a secret: never printed, and its variables may come from NAME_FILE."""
    names = [part for part in path if isinstance(part, str)]
    if names[:1] == ["spark"]:
        return bool(SPARK_SECRETS.search(names[-1]))
    if names[-1:] == ["key"] and "columns" in names[:-2]:
        return True  # Of a mask.
    return bool(names) and (names[-1] in SECRET_KEYS or (len(names) > 1 and names[-2] in SECRET_PARENTS))


def make_value_error(code: str, sentence: str) -> PydanticCustomError:
    """An error whose sentence completes `<key> in <place> ...`; it must not hold the value."""
    return PydanticCustomError(f"replicator_{code}", "{sentence}", {"sentence": sentence})


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise make_value_error("type", "must be a number")
    return value


def _parse_size(value: Any) -> int:
    """A number of bytes, or text with a unit as pydantic's ByteSize reads it."""
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)? *([kKMGT]i?)?B?", value.strip()):
        text = value.strip()
        return ByteSize._validate(text if not text[-1].isdigit() else f"{text}B", None)  # type: ignore[arg-type]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise make_value_error("size", "must be a number of bytes, or a size such as 64MiB")


def to_plain_path(text: str, root: FilePath | None, stores: frozenset[str] = NO_STORES) -> str:
    """A path from the config as adapters use it: URLs of the object stores `stores` as they are, others absolute under
    `root`.

    Raises PydanticCustomError for a path that is empty, leaves `root` by `..`, starts with `~`, or contains control
    characters. Without `root`, an absolute path may have `..`, since the folder of the config may. Also raises it for a
    URL that has an unknown or unsupported scheme, or contains credentials.
    """
    if not text.strip() or any(ord(character) < 32 for character in text):
        raise make_value_error("path", "must be a path, without control characters")
    scheme, separator, _ = text.partition("://")
    if separator:
        return _check_url(text, scheme, stores)
    if text.startswith("~"):
        raise make_value_error("path", "starts with ~, which is not expanded; write ${HOME}")
    path = FilePath(text)
    if ".." in path.parts and not (root is None and path.is_absolute()):
        raise make_value_error("path_escapes", "leaves its folder by '..'; write an absolute path instead")
    return str(root / path) if root is not None else str(path)


def _check_url(text: str, scheme: str, stores: frozenset[str]) -> str:
    """A `file://` URL as a path; an object store's URL as it is."""
    url = urlsplit(text)
    if ".." in text.split("/"):
        raise make_value_error("path_escapes", "leaves its folder by '..'")
    if scheme == "file" and not url.netloc and url.path.startswith("/") and not url.query:
        return url2pathname(url.path)
    if scheme not in OBJECT_STORES:
        raise make_value_error("path", "is a URL of an unknown kind; give a local folder")
    if scheme not in stores:
        instead = "a local folder, or s3://BUCKET/FOLDER" if stores else "a local folder"
        raise make_value_error(
            "not_yet_supported", f"is in an object store ({scheme}), which is not yet supported; give {instead}"
        )
    if "@" in url.netloc:
        raise make_value_error("path", "holds credentials; write them under 'storage'")
    if not STORE_URL.fullmatch(text):
        raise make_value_error("path", "must be s3://BUCKET/FOLDER, with letters, digits and . _ - = in the folder's name")
    return text.rstrip("/")


def _check_path(text: str, info: ValidationInfo) -> str:
    return to_plain_path(text, (info.context or {}).get("root"))


def _check_lake_path(text: str, info: ValidationInfo) -> str:
    return to_plain_path(text, (info.context or {}).get("root"), LAKE_STORES)


EMPTY_SECRET = make_value_error("secret", "is an empty secret; set the variable that it comes from, or remove the key")


def _check_secret(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise EMPTY_SECRET
    return secret


def check_spark_options(options: dict[str, str]) -> dict[str, str]:
    """Refuse empty secrets, each at its own place."""
    empty = [name for name, value in options.items() if is_secret(("spark", name)) and not value.strip()]
    if empty:
        raise ValidationError.from_exception_data(
            "spark", [{"type": EMPTY_SECRET, "loc": (name,), "input": None} for name in empty]
        )
    return options


BAD_IN_USER = re.compile(r"[@\s\x00-\x1f]|%(?![0-9A-Fa-f]{2})")
ENCODE = "percent-encode user and password: `python -c \"from urllib.parse import quote; print(quote(input(), safe=''))\"`"


def has_unclear_user(url: str) -> bool:
    """Drivers may take a part of the user or the password for the host, or for the database, and then print it."""
    rest = url.partition("://")[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    path, _, query = rest[len(authority) :].partition("?")
    user = authority.rpartition("@")[0]
    return bool(authority) and bool(BAD_IN_USER.search(user) or "@" in path or re.match(r"[^=]*@", query))


def _check_user(secret: SecretStr) -> SecretStr:
    if has_unclear_user(secret.get_secret_value()):
        raise make_value_error("dsn", f"has a user or password with characters that end it too early; {ENCODE}")
    return secret


OF_PROGRAM = {"of_program": True}
"""The validation context of options that a program gives. It may also write a DSN as libpq's connection string."""


def _check_dsn(secret: SecretStr, info: ValidationInfo) -> SecretStr:
    if (info.context or {}).get("of_program"):
        return secret
    return _check_postgres_url(secret)


def _check_postgres_url(secret: SecretStr) -> SecretStr:
    _check_user(secret)
    try:
        url = urlsplit(secret.get_secret_value())
        valid = url.scheme in {"postgresql", "postgres"} and len(url.path) > 1 and (url.port is None or url.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise make_value_error("dsn", "must be a URL such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return secret


def _check_source_dsn(secret: SecretStr) -> SecretStr:
    scheme = secret.get_secret_value().partition(":")[0]
    if scheme == "mysql":
        raise make_value_error(
            "dsn",
            "is a MySQL database, and neither `doctor` nor `backfill` can read it: leave `database` out, and load tables by "
            "Debezium's incremental snapshots",
        )
    _check_user(secret)
    try:
        if scheme == "mariadb" and urlsplit(secret.get_secret_value()).hostname:
            return secret
        return _check_postgres_url(secret)
    except ValueError:
        example = "//USER:PASSWORD@HOST:PORT/DATABASE"
        raise make_value_error("dsn", f"must be a URL such as postgresql:{example} or mariadb:{example}") from None


def _check_database_url(secret: SecretStr) -> SecretStr:
    scheme, separator, rest = secret.get_secret_value().partition("://")
    if not separator or not rest or not re.fullmatch(r"[a-z][a-z0-9_]*(\+[a-z0-9_]+)?", scheme):
        raise make_value_error("dsn", "must be a URL such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    return _check_user(secret)


def _check_start(value: Any) -> Any:
    if value in ("earliest", "latest"):
        return value
    return _check_zoned_time(value, "must be earliest, latest, or a time such as 2026-01-31T12:00:00Z")


def _check_time(value: Any) -> Any:
    """Also the time that YAML makes of a text that is one."""
    return _check_zoned_time(
        value.isoformat() if isinstance(value, datetime) else value, "must be a time such as 2026-01-31T12:00:00Z"
    )


def _check_zoned_time(value: Any, wanted: str) -> Any:
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise make_value_error("start", wanted) from None
    if time.tzinfo is None:
        raise make_value_error("start", "needs a time zone, such as 2026-01-31T12:00:00Z")
    return value


def _check_glob(text: str) -> str:
    why = describe_malformed(text)
    if why:
        raise make_value_error("glob", f"is not a name, a glob, or a regular expression that starts with ^: {why}")
    return text


def _check_topic(text: str) -> str:
    if not text.startswith("^"):
        return _check_glob(text)
    try:
        re.compile(text)
    except re.error:
        raise make_value_error("glob", "starts with ^, but is not a valid regular expression") from None
    return text


def _check_target(text: str) -> str:
    why = describe_target_problem(text)
    if why:
        raise make_value_error("into", why)
    return text


def _check_catalog_schema(text: str) -> str:
    """The schema's own name: Spark keeps views in the session's catalog alone."""
    name = text.removeprefix(f"{CATALOG}.")
    if not re.fullmatch(r"[A-Za-z0-9_]+", name):
        plain = "letters, digits and _"
        raise make_value_error(
            "schema", f"must be a schema of Spark's own catalog, such as shop or {CATALOG}.shop, of {plain}"
        )
    return name


def _check_servers(text: str) -> str:
    return _check_address_list(text, 1)


def _check_address_list(text: str, lowest: int) -> str:
    for server in text.split(","):
        match = SERVER.fullmatch(server.strip())
        if "@" in server or not match or not lowest <= int(match["port"]) <= LAST_PORT:
            raise make_value_error("server", "must be HOST:PORT, or several with commas between them")
    return text


def _check_duration(text: Any) -> str:
    if not isinstance(text, str) or not re.fullmatch(DURATION, text):
        raise make_value_error(
            "duration", "must be a time such as 30 seconds, in milliseconds, seconds, minutes, hours or days"
        )
    return text


def _check_positive(duration: str) -> str:
    if not to_timedelta(duration):
        raise make_value_error("duration", "must be longer than none")
    return duration


def to_timedelta(duration: str) -> timedelta:
    """The length of a `Duration`."""
    count, unit = duration.split(" ")
    return timedelta(**{unit.removesuffix("s") + "s": int(count)})


def _check_http(text: str) -> str:
    try:
        url = urlsplit(text)
        valid = url.scheme in {"http", "https"} and url.hostname and url.port != 0 and "@" not in url.netloc
    except ValueError:  # The port is no number, for one.
        valid = False
    if not valid or url.query or not url.path.isascii() or re.search(r"[\x00-\x20\x7f]", text):
        raise make_value_error(
            "url", "must be a URL such as http://HOST:PORT, without user and password; percent-encode other characters"
        )
    return text.rstrip("/")


def _check_address(text: str) -> str:
    if "," in text:
        raise make_value_error("server", "must be one HOST:PORT")
    return _check_address_list(text, 0)


NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
"""A pipeline, sink or source: letters, digits, - and _, starting with a letter."""

Count = Annotated[int, Field(ge=1), BeforeValidator(_refuse_bool)]
Nesting = Annotated[int, Field(ge=2, le=500), BeforeValidator(_refuse_bool)]
FromZero = Annotated[int, Field(ge=0), BeforeValidator(_refuse_bool)]
Size = Annotated[int, Field(ge=1, json_schema_extra={"type": ["integer", "string"]}), BeforeValidator(_parse_size)]
"""Bytes; written as a number or with a unit (64MiB)."""

ConfigPath = Annotated[str, AfterValidator(_check_path)]
"""A path; absolute once loaded."""

LakePath = Annotated[str, AfterValidator(_check_lake_path)]
"""A path, absolute once loaded, or the URL of a folder in an object store."""

CatalogSchema = Annotated[str, AfterValidator(_check_catalog_schema)]
"""A schema of the Spark session's catalog; its own name once loaded."""

Secret = Annotated[SecretStr, AfterValidator(_check_secret)]
"""A password or token. An empty one would switch off what it guards."""

Token = Annotated[Secret, AfterValidator(lambda secret: SecretStr(secret.get_secret_value().rstrip("\r\n")))]
"""A token of HTTP requests, without the line end that variables and YAML blocks may have: no header can hold it."""

Dsn = Annotated[SecretStr, AfterValidator(_check_dsn)]
"""A PostgreSQL URL."""

SourceDsn = Annotated[SecretStr, AfterValidator(_check_source_dsn)]
"""The URL of a source's database: of PostgreSQL or of MariaDB."""

DatabaseUrl = Annotated[SecretStr, AfterValidator(_check_database_url)]
"""The URL of any database, as SQLAlchemy writes it."""

StartFrom = Annotated[str, BeforeValidator(_check_start)]
ZonedTime = Annotated[str, BeforeValidator(_check_time)]
Glob = Annotated[str, AfterValidator(_check_glob)]
Topic = Annotated[str, AfterValidator(_check_topic)]
"""A name, a glob, or a regular expression that starts with ^."""

Into = Annotated[str, AfterValidator(_check_target)]
Duration = Annotated[str, Field(json_schema_extra={"pattern": DURATION}), BeforeValidator(_check_duration)]
"""A length of time, such as 30 seconds."""
PositiveDuration = Annotated[Duration, AfterValidator(_check_positive)]


def _check_retention(value: Any) -> str:
    if value == NO_RETENTION:
        return NO_RETENTION
    if not isinstance(value, str) or not re.fullmatch(DURATION, value) or not int(value.split(" ")[0]):
        raise make_value_error("duration", "must be a time such as 7 days, longer than none, or off")
    return value


NO_RETENTION = "off"
Retention = Annotated[
    str,
    Field(json_schema_extra={"pattern": f"{DURATION}|^{NO_RETENTION}$"}),
    BeforeValidator(_check_retention),
]
"""A length of time, or `off`."""

Servers = Annotated[str, AfterValidator(_check_servers)]
Address = Annotated[str, AfterValidator(_check_address)]
HttpUrl = Annotated[str, AfterValidator(_check_http)]


def _to_text(value: Any) -> Any:
    """librdkafka takes text: true becomes "true", 5 becomes "5"."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})
Text = Annotated[str, BeforeValidator(_to_text), SCALAR]
SecretText = Annotated[Secret, BeforeValidator(_to_text), SCALAR]


# Options that several adapters have. An adapter may inherit a model, and add what it does with the values.

VACUUM = ("vacuum_every", "vacuum_retain")
"""Keys of scheduled vacuums."""


class StorageSettings(Strict):
    """The access to an object store. Missing keys come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_REGION` and so on)
    or from the machine's role."""

    access_key_id: Secret | None = None
    """The id of the access key, together with `secret_access_key`."""
    secret_access_key: Secret | None = None
    """The secret of the access key."""
    session_token: Secret | None = None
    """The session token of temporary credentials."""
    region: str | None = Field(default=None, min_length=1)
    """The region of the bucket, such as `eu-central-1`."""
    endpoint: HttpUrl | None = None
    """The URL of a store that is not Amazon's."""
    allow_http: bool = False
    """Allows an `endpoint` without encryption (`http://`)."""

    @model_validator(mode="after")
    def _check_whole(self) -> StorageSettings:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise make_value_error("storage", "needs both 'access_key_id' and 'secret_access_key', or none of them")
        if self.session_token is not None and self.access_key_id is None:
            raise make_value_error("storage", "has a 'session_token' without 'access_key_id'")
        if (self.endpoint or "").startswith("http://") and not self.allow_http:
            raise make_value_error("storage", "has an 'endpoint' without encryption; write https://, or 'allow_http: true'")
        return self


def refuse_idle_storage(path: str | None, storage: StorageSettings | None) -> None:
    """Raise PydanticCustomError for a `storage` together with a path on this machine."""
    if storage is not None and "://" not in (path or ""):
        raise make_value_error(
            "inapplicable", "has a 'storage', which means nothing without an s3:// URL in 'path'; remove it"
        )


def _check_character(value: str) -> str:
    if len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise make_value_error("value", "must be one ASCII character, and no line end")
    return value


Character = Annotated[
    str, AfterValidator(_check_character), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 1})
]


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

    @model_validator(mode="after")
    def _check_signs(self) -> CsvSettings:
        signs = [sign for sign in (self.delimiter, self.quote, self.escape) if sign not in (None, "none")]
        if len(set(signs)) < len(signs):
            raise make_value_error("contradiction", "has one character twice: 'delimiter', 'quote' and 'escape' must differ")
        if self.null_value == self.unsent_value:
            raise make_value_error("contradiction", "has one text twice: 'null_value' and 'unsent_value' must differ")
        return self


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
