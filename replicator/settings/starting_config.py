"""The config that `replicator init` writes: for tables of a source, or translated from connectors of Kafka Connect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from replicator.domain.errors import ConfigProblem
from replicator.domain.patterns import TopicFilter, is_exact
from replicator.domain.plain_values import to_printable
from replicator.ports.source import DiscoveredSource, DiscoveredTable

# A config to start with, for `replicator init`: all tables of the sources into all targets.

COMMENT_COLUMN = 40
MOST_NAMED = 8
"""Tables that the comment of a glob names."""
BY_POLICY = {"scd1": "current rows", "append": "no key: each change is a row"}
LATER = "tables that are created later"
DATABASE_COMMENT = "only `replicator doctor`, `backfill` and `diff` connect to it"
CONNECT_COMMENT = "only `replicator doctor` connects to it"

Sinks = Mapping[str, Mapping[str, Any]]


def choose_policy(table: DiscoveredTable) -> str:
    """The current rows where there is a key, otherwise every change."""
    return "scd1" if table.keys else "append"


def build_starting_config(sources: Sequence[DiscoveredSource], sinks: Sinks) -> str:
    """The YAML text of a config. `sinks`: as in the config."""
    entries = list(list_entries(sources, tuple(sinks)))
    config = _to_yaml(
        {
            "sources": {source.name: dict(source.settings) for source in sources},
            "sinks": dict(sinks),
            "tables": [entry for entry, _ in entries],
        }
    )
    titles = "\n".join(f"Made by `replicator init` from {_to_line(source.title)}." for source in sources)
    help_line = "`replicator check` validates this file, `replicator plan` shows what will run."
    config.yaml_set_start_comment(f"yaml-language-server: $schema=./schema.json\n{titles}\n{help_line}")
    for key in ("sinks", "tables"):
        config.yaml_set_comment_before_after_key(key, before="\n")
    config.yaml_add_eol_comment("the most specific match wins, whole", "tables", column=COMMENT_COLUMN)
    for source in config["sources"].values():
        for key, comment in (("database", DATABASE_COMMENT), ("connect", CONNECT_COMMENT)):
            if key in source:
                source.yaml_add_eol_comment(comment, key, column=COMMENT_COLUMN)
    for entry, (_, comment) in zip(config["tables"], entries, strict=True):
        entry.yaml_add_eol_comment(comment, "match", column=COMMENT_COLUMN)
    return _dump(config)


def list_entries(sources: Sequence[DiscoveredSource], sinks: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The entries of `tables`, each with a comment.

    Each source and schema has one entry for all similar tables, then one for each other table. Tables of one name have the
    schema in the target's name, and the source if they are of one schema. Without similar tables, a regular expression
    matches tables that are created later; it would win over a glob.
    """
    names = [table.name for source in sources for table in source.tables]
    bare = [_split(table.name)[1] for source in sources for table in source.tables]
    targets = {name for name in bare if bare.count(name) == 1}
    to = [{"sink": sink} for sink in sinks]
    for source, schema in dict.fromkeys((s.name, _split(table.name)[0]) for s in sources for table in s.tables):
        mine = [t for s in sources if s.name == source for t in s.tables if _split(t.name)[0] == schema]
        keyed = [table for table in mine if table.keys] or mine
        alike = [t for t in keyed if schema and not t.settings and bare.count(_split(t.name)[1]) == 1]
        if alike:
            policy = choose_policy(alike[0])
            named = ", ".join(_to_line(_split(table.name)[1]) for table in alike[:MOST_NAMED])
            more = f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
            entry = {"match": f"{_to_glob(schema)}.*", "source": source, "policy": policy, "to": to}
            yield entry, f"{BY_POLICY[policy]}: {named}{more}"
        for table in (table for table in mine if table not in alike):
            policy, is_double = choose_policy(table), bare.count(_split(table.name)[1]) > 1
            into = re.sub(r"\W", "_", f"{source}.{table.name}" if names.count(table.name) > 1 else table.name)
            while is_double and into in targets:
                into += "_"
            targets.add(into)
            own = {"policy": policy, **({"into": into} if is_double else {}), **table.settings}
            comment = "; ".join(filter(None, (BY_POLICY[policy], table.note)))
            # A regular expression holds all characters, and wins over globs.
            is_name = table.name.isprintable() and is_exact(table.name)
            match = table.name.replace("${", "$${") if is_name else f"^{_to_regex(table.name)}"
            yield {"match": match, "source": source, **own, "to": to}, comment
        if schema and not alike and not any(table.settings for table in mine):
            start = f"{source}.{schema}" if any(names.count(table.name) > 1 for table in mine) else schema
            own = {"policy": choose_policy(keyed[0]), "into": re.sub(r"\W", "_", start) + "_{1}"}
            yield {"match": rf"^{_to_regex(schema)}\.(.*)", "source": source, **own, "to": to}, LATER


def _split(table: str) -> tuple[str, str]:
    """Schema and name; the schema is empty if there is none."""
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else ("", table)


def _to_regex(name: str) -> str:
    return "".join(re.escape(character) if character.isprintable() else r"\W" for character in name)


def _to_glob(name: str) -> str:
    printable = "".join(character if character.isprintable() else "?" for character in name)
    return re.sub(r"[*?[^]", r"[\g<0>]", printable).replace("${", "$${")


def _to_line(text: str) -> str:
    return to_printable(text).replace("\n", " ")


def _to_yaml(value: Any) -> Any:
    """The value for the YAML writer: a list of small values is one line."""
    if isinstance(value, Mapping):
        return CommentedMap((key, _to_yaml(item)) for key, item in value.items())
    if not isinstance(value, list):
        return value
    items = CommentedSeq([_to_yaml(item) for item in value])
    if all(isinstance(item, str) or (isinstance(item, Mapping) and len(item) == 1) for item in value):
        for item in (items, *(item for item in items if isinstance(item, CommentedMap))):
            item.fa.set_flow_style()
    return items


def _dump(config: Mapping[str, Any]) -> str:
    yaml, out = YAML(), StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4096
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.dump(config, out)
    return out.getvalue()


# A config out of connectors of Kafka Connect: a Debezium source connector and the JDBC sink connectors of its topics.
#
# The source connector goes on writing the topics, and the config replaces the sinks. So the source's settings count only
# where they say what records look like and where they are. Each setting of a sink is carried over or is in `left_out`.
#
# Sources of names, defaults and meanings:
#
# - https://debezium.io/documentation/reference/stable/connectors/jdbc.html; `SinkConnectorConfig`,
#   `JdbcSinkConnectorConfig`, `DefaultCollectionNamingStrategy` and `ByLogicalTableRouter` of debezium/debezium
# - `JdbcSinkConfig`, `JdbcDbWriter` and `DbStructure` of confluentinc/kafka-connect-jdbc; `RegexRouter` of apache/kafka
# - https://debezium.io/documentation/reference/stable/transformations/event-flattening.html

POSTGRES_SOURCE = "io.debezium.connector.postgresql.PostgresConnector"
MYSQL_SOURCES = ("io.debezium.connector.mysql.MySqlConnector", "io.debezium.connector.mariadb.MariaDbConnector")
SOURCES = (POSTGRES_SOURCE, *MYSQL_SOURCES)
DEBEZIUM_SINK, CONFLUENT_SINK = "io.debezium.connector.jdbc.JdbcSinkConnector", "io.confluent.connect.jdbc.JdbcSinkConnector"
SINKS = (DEBEZIUM_SINK, CONFLUENT_SINK)
FORM = 'Give the JSON that the REST API of Kafka Connect takes: {"name": ..., "config": {...}}, or its config alone.'
HIDDEN = "***"
SECRET = re.compile(r"passw|secret|token|credential|jaas|user\.info|api\.?key|private|ssl\..*key", re.IGNORECASE)
SECRET_PART = re.compile(r"(://[^\s/@]*:)[^\s@]+(?=@)|(passw\w*\s*[=:]\s*)[^\s&;,]+", re.IGNORECASE)
SCHEMA, TABLE = "xschemax", "xtablex"
"""They stand for the names of all tables that a pattern matches, while topics and targets are named."""
ROUTERS = {"RegexRouter": "", "ByLogicalTableRouter": "topic.", "ToLogicalTopicRouter": "topic."}
"""Transforms that rename topics, and the beginning of the names of their settings."""
ROW_PLACE, BINLOG_PLACE = {"lsn"}, {"file", "pos", "row"}
"""Fields with a row's place in the log that ExtractNewRecordState may add (docs/how-to/read-flattened-rows.md)."""
LANE_KEYS = ("policy", "deletes", "tombstones", "tombstone_retention", "schema_changes")
BY_COLUMNS = (
    "write `where` or `columns` (drop, rename, cast, mask, metadata, constant) of the table "
    "(docs/how-to/transform-columns.md)"
)
BY_CONNECTOR = "the connector goes on doing so before it sends: replicator sees the result"

UNREAD_OF_SINK = (
    (r"(key|value|header)\.converter.*|dialect\..*", ""),
    (
        r"errors\..*",
        "rejected records become dead letters (docs/how-to/recover-dead-letters.md); `on_reject: stop_lane` stops the table",
    ),
    (r"consumer\..*", "write librdkafka's setting under `options` of the source, or `security`"),
    (
        r"fields?\..*",
        "write `column_list` with the key, or `except_column_list`, of each table (docs/how-to/transform-columns.md)",
    ),
    (r"auto\.create", "a missing table is created; create it beforehand to choose its types"),
    (r"(quote|transforms|predicates|collection|table|column).*", BY_COLUMNS + ", or `into`"),
    (r".*time_?zone.*", "times are written as they were sent, timestamps with a zone in UTC"),
    (r".*", "replicator sizes batches, connects and tries again by itself, and has no such setting"),
)
"""Why a setting of a sink is left out, by its name; empty if nothing is lost."""
UNREAD_OF_SOURCE = (
    (r"signal\.data\.collection", "its rows come like those of any table: leave it out of `tables`, or keep it"),
    (r"signal\..*", "signals are for the connector; records of a signal topic are ignored"),
    (r"(topic\.)?heartbeat\..*", "the connector goes on sending heartbeats, which are ignored"),
    (r"value\.converter\.schema\.registry\.ssl\..*", "write certificates as PEM, and `ca` of `registry`"),
    (
        r"column\.(mask|truncate)\..*",
        BY_CONNECTOR + "; its own masks are `columns: {NAME: {mask: ...}}` (docs/how-to/mask-a-column.md)",
    ),
    (r"topic\.naming\.strategy|predicates.*|transforms\..*predicate", "correct `topics` and `into` where it changes topics"),
)


@dataclass(frozen=True)
class LeftOut:
    """A setting that is not carried over: its value, secrets hidden, and why, with what to do instead."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True)
class ImportedConfig:
    """The YAML text of a config, and what it does not carry over."""

    text: str
    left_out: tuple[LeftOut, ...]


class ConnectorFile:
    """One connector. It records which settings were read. Raises ConfigProblem unless `text` is a connector's JSON."""

    def __init__(self, file: str, text: str) -> None:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigProblem(f"{file} is not JSON", next_step=FORM) from None
        config = document.get("config", document) if isinstance(document, dict) else None
        if not isinstance(config, dict) or not isinstance(config.get("connector.class"), str):
            raise ConfigProblem(f"{file} is not a connector: it has no connector.class", next_step=FORM)
        self.kind = config["connector.class"].strip()
        self.name = to_printable(str(document.get("name") or config.get("name") or file)).replace("\n", " ")
        self.left_out: list[LeftOut] = []
        texts = ((n, v.strip() if isinstance(v, str) else json.dumps(v)) for n, v in config.items() if v is not None)
        self._config = {name: value for name, value in texts if value}
        self._read = {"connector.class", "name"}

    def get(self, *names: str, default: str = "") -> str:
        """The value under the first of the names that has one."""
        self._read.update(names)
        return next((self._config[name] for name in names if name in self._config), default)

    def is_true(self, name: str, default: str = "false") -> bool:
        """True if the value is true."""
        return self.get(name, default=default).lower() == "true"

    def leave_out(self, setting: str, reason: str, value: str = "") -> None:
        """Note a setting that is not carried over, with a part of its value, or its value."""
        self._read.add(setting)
        shown = value or self._config.get(setting, "")
        shown = HIDDEN if SECRET.search(setting) and shown else SECRET_PART.sub(rf"\1\2{HIDDEN}", shown)
        self.left_out.append(LeftOut(setting, shown, reason))

    def leave_out_unread(self, reasons: Iterable[tuple[str, str]]) -> None:
        """Note every setting that nothing has read, with the reason of the first pattern that matches its name."""
        for name in [name for name in self._config if name not in self._read]:
            reason = next((reason for pattern, reason in reasons if re.fullmatch(pattern, name)), "")
            if reason:
                self.leave_out(name, reason)

    def list_transforms(self) -> list[tuple[str, str]]:
        """The beginning of the settings of each transform, and the class without its package."""
        prefixes = [f"transforms.{alias}." for alias in _split_list(self.get("transforms"))]
        return [(at, self.get(f"{at}type").partition("$")[0].rpartition(".")[2]) for at in prefixes]

    def find_unwrap(self) -> str:
        """The beginning of the settings of ExtractNewRecordState; empty without it."""
        return next((at for at, kind in self.list_transforms() if kind == "ExtractNewRecordState"), "")

    def route(self, topic: str, *, exact: bool = True) -> str:
        """The topic as its transforms rename it. Unless `exact` it stands for many, and a transform that does not match
        it is left out. Java's replacements name groups by $1."""
        for at, kind in self.list_transforms():
            begin = f"{at}{ROUTERS.get(kind, '')}"
            regex, replacement = self.get(f"{begin}regex"), self.get(f"{begin}replacement")
            if kind not in ROUTERS:
                continue
            try:
                match = re.fullmatch(regex, topic)
                topic = match.expand(re.sub(r"\$(\d)", r"\\g<\1>", replacement)) if match else topic
            except (re.error, IndexError):
                self.leave_out(f"{begin}regex", "it is no regular expression here: correct `topics` and `into`")
                continue
            if match is None and not exact:
                self.leave_out(f"{begin}regex", "it renames some topics only: name their tables in `tables`, with `into`")
            if begin != at and self.kind in SOURCES and self.is_true(f"{at}key.enforce.uniqueness", default="true"):
                self.leave_out(f"{at}key.enforce.uniqueness", "it adds a column to messages' keys: write `keys` of tables")
        return topic

    def leave_out_transforms(self, reason: str) -> None:
        """Note the transforms that neither rename topics nor are ExtractNewRecordState."""
        for at, kind in self.list_transforms():
            if kind not in {*ROUTERS, "ExtractNewRecordState"}:
                self.leave_out(f"{at}type", reason)
                self._read.update(name for name in self._config if name.startswith(at))


class SourceTopics:
    """The topics of a source connector. `tables`: names and globs, as `match` has them."""

    def __init__(self, connector: ConnectorFile) -> None:
        self.connector, self.prefix = connector, connector.get("topic.prefix", "database.server.name")
        if not self.prefix or "${" in self.prefix:
            step = "Write the value that the worker has for it into the file: topics begin with it."
            raise ConfigProblem(f"Connector {connector.name} does not say its topic.prefix", next_step=step)
        self.delimiter = connector.get("topic.delimiter", default=".")
        tables = [_to_included_match(entry) for entry in _split_list(connector.get("table.include.list", "table.whitelist"))]
        lists = ("schema.include.list", "schema.whitelist", "database.include.list", "database.whitelist")
        schemas = [f"{name}.*" if re.fullmatch(r"[\w$-]+", name) else "*" for name in _split_list(connector.get(*lists))]
        self.tables = list(dict.fromkeys(tables or schemas or ["*"]))

    def name_topic(self, table: str) -> str:
        """The topic of a table; with SCHEMA and TABLE in it for a glob."""
        return self.connector.route(self.delimiter.join((self.prefix, *_split_match(table))), exact=is_exact(table))

    def find_table(self, topic: str) -> str:
        """The table whose records are in the topic; empty if it is not known."""
        own = topic.removeprefix(f"{self.prefix}{self.delimiter}").replace(self.delimiter, ".", 1)
        listed = next((table for table in self.tables if is_exact(table) and self.name_topic(table) == topic), "")
        is_plain = own != topic and "." in own and self.connector.route(topic) == topic
        return listed or (own if is_plain and not all(map(is_exact, self.tables)) else "")


def import_connectors(files: Sequence[tuple[str, str]]) -> ImportedConfig:
    """The config that does what the connectors do. `files`: name and text of each. Raises ConfigProblem where there is none:
    not one source and at least one sink, an unknown connector, another database than PostgreSQL, unreadable records."""
    source, sinks = _find_connectors([ConnectorFile(file, text) for file, text in files])
    topics, name = SourceTopics(source), _to_name(source.get("topic.prefix", "database.server.name"))
    settings = {**_read_format(source, sinks), "transport": "kafka"}
    settings |= {"bootstrap_servers": "${KAFKA_BOOTSTRAP_SERVERS:-localhost:9092}", "topics": []}
    tombstones = _read_tombstones(source, settings)
    targets, tables, covered = dict[str, Any](), dict[str, dict[str, Any]](), set[str]()
    # The most specific entry of a table wins, whole: what one sink names, the patterns of the others have to name too.
    named = (topics.find_table(topic) for sink in sinks for topic in _split_list(sink.get("topics")))
    topics.tables += [table for table in dict.fromkeys(named) if table and table not in topics.tables]
    labels = dict[str, str]()
    several = len({sink.get("connection.url") for sink in sinks}) > 1
    for sink in sinks:
        label = labels.setdefault(sink.get("connection.url"), _to_name(sink.name) if several else "target")
        matches, read = _list_tables(sink, topics)
        covered.update(matches)
        settings["topics"] += [topic for topic in read if topic not in settings["topics"]]
        lane = {**_read_policy(sink, source), **tombstones}
        keys = {} if lane["policy"] == "append" else _read_keys(sink)
        for match, entry in _add_targets(sink, topics, matches, label, targets):
            tables.setdefault(match, {"match": match, "source": name, **keys, "to": []})["to"].append({**entry, **lane})
        if sink.get("consumer.override.auto.offset.reset") == "latest":
            settings["start_from"] = "latest"
        sink.leave_out_transforms(BY_COLUMNS)
        sink.leave_out_unread(UNREAD_OF_SINK)
    _add_transactions(settings, topics, covered)
    source.leave_out_transforms(
        f"{BY_CONNECTOR}; what is then no change event is rejected (outbox: docs/how-to/read-an-outbox.md)"
    )
    source.leave_out_unread(UNREAD_OF_SOURCE)
    config = {"pipeline": name, "sources": {name: settings}, "sinks": targets, **_take_defaults(tables)}
    names = ", ".join(one.name for one in (source, *sinks))
    comment = f"# Made by `replicator import` of these connectors (docs/how-to/import-a-kafka-connect-setup.md): {names}\n"
    # A copy: a value that occurs twice would become an alias.
    text = _dump(json.loads(json.dumps({**config, "tables": list(tables.values())})))
    text = f"# yaml-language-server: $schema=./schema.json\n{comment}{text}"
    return ImportedConfig(text, tuple(dict.fromkeys(left for one in (source, *sinks) for left in one.left_out)))


def _find_connectors(connectors: Sequence[ConnectorFile]) -> tuple[ConnectorFile, list[ConnectorFile]]:
    for one in connectors:
        if one.kind not in SOURCES + SINKS:
            sentence = f"Connector {one.name} is a {to_printable(one.kind)}, which cannot be imported"
            raise ConfigProblem(sentence, next_step=f"Supported are {', '.join(SOURCES + SINKS)}.")
    sources, sinks = ([one for one in connectors if one.kind in kinds] for kinds in (SOURCES, SINKS))
    if len(sources) != 1 or not sinks:
        sentence = (
            f"An import needs 1 Debezium source connector and JDBC sink connectors, not {len(sources)} and {len(sinks)}"
        )
        step = "Name the file of one source connector, and those of the sinks that read its topics."
        raise ConfigProblem(sentence, next_step=step)
    return sources[0], sinks


def _to_included_match(entry: str) -> str:
    """The name or glob for an entry of table.include.list, a regular expression over SCHEMA.TABLE. Any other one is `*`, as
    the connector writes no topic besides."""
    text = re.sub(r"\\\.|\[\.\]", ".", entry.strip("^$"))
    schema = re.fullmatch(r"([\w$-]+)\.\.?[*+]", text)
    return text if re.fullmatch(r"[\w$-]+\.[\w$-]+", text) else f"{schema[1]}.*" if schema else "*"


def _read_format(source: ConnectorFile, sinks: Sequence[ConnectorFile]) -> dict[str, Any]:
    """Format of the records, and what it needs: by the converter of the source connector, else of a sink."""
    connector = next((one for one in (source, *sinks) if one.get("value.converter")), source)
    kind, keys = (connector.get(f"{part}.converter").rpartition(".")[2] for part in ("value", "key"))
    if keys not in ("", "JsonConverter", "AvroConverter"):
        connector.leave_out("key.converter", "keys of messages are read as JSON or Avro: write `keys` of each table")
    if kind == "AvroConverter":
        return {"format": "debezium_avro", "registry": _read_registry(connector)}
    if kind not in ("", "JsonConverter"):
        step = "Have the source connector send with the JsonConverter or the AvroConverter, into new topics."
        raise ConfigProblem(f"Connector {connector.name} has the {kind}, which replicator does not read", next_step=step)
    if not kind:
        connector.leave_out("value.converter", "the worker's own is not in the file; taken for JsonConverter with schemas")
    if connector.is_true("value.converter.schemas.enable", default="true"):
        return {"format": "debezium_json"}
    reason = "records say no types: set it to true, or write `schema` of tables, times in the unit of time.precision.mode"
    connector.leave_out("value.converter.schemas.enable", reason)
    decimals = {"precise": "base64", "string": "text"}.get(source.get("decimal.handling.mode", default="precise"))
    return {"format": "debezium_json", **({"decimals": decimals} if decimals else {})}


def _read_registry(connector: ConnectorFile) -> dict[str, Any]:
    setting = "value.converter.schema.registry.url"
    url, _, others = connector.get(setting).partition(",")
    if others or not url or "${" in url or "@" in url:
        reason = "set SCHEMA_REGISTRY_URL to one URL without a password; of Apicurio http://HOST:PORT/apis/ccompat/v7"
        connector.leave_out(setting, reason)
        url = "${SCHEMA_REGISTRY_URL}"
    login = connector.get(*(f"value.converter.{start}basic.auth.user.info" for start in ("", "schema.registry.")))
    user = "${REGISTRY_USER}" if "${" in login else login.partition(":")[0]
    return {"url": url, **({"user": user, "password": "${REGISTRY_PASSWORD}"} if user else {})}


def _read_delete_mode(connector: ConnectorFile, at: str) -> str:
    """delete.tombstone.handling.mode, or what the two older settings mean together."""
    mode = connector.get(f"{at}delete.tombstone.handling.mode")
    older, drops = connector.get(f"{at}delete.handling.mode"), connector.get(f"{at}drop.tombstones")
    if mode or not (older or drops):
        return mode or "tombstone"
    if older == "rewrite":
        return "rewrite-with-tombstone" if drops == "false" else "rewrite"
    return "tombstone" if older == "none" or drops == "false" else "drop"


def _read_tombstones(source: ConnectorFile, settings: dict[str, Any]) -> dict[str, str]:
    """`tombstones`, of compacted topics and of flattened rows; then `flattened` comes into the source's settings."""
    compacted = "compact" in source.get("topic.creation.default.cleanup.policy")
    at = source.find_unwrap()
    if not at:
        return {"tombstones": "delete"} if compacted and source.is_true("tombstones.on.delete", default="true") else {}
    if settings["format"] != "debezium_json":
        step = "Move the transform from the source connector into the sink, so that topics hold change events."
        raise ConfigProblem(f"Connector {source.name} flattens records in Avro, which is not read", next_step=step)
    settings["flattened"] = True
    fields = _split_list(source.get(f"{at}add.fields")) + _split_list(source.get(f"{at}add.headers"))
    added = {field.partition(":")[0].rpartition(".")[2] for field in fields}
    has_place = (ROW_PLACE if source.kind == POSTGRES_SOURCE else BINLOG_PLACE) <= added
    mode = _read_delete_mode(source, at)
    if mode in ("tombstone", "delete-to-tombstone") or (mode == "rewrite-with-tombstone" and not has_place):
        return {"tombstones": "delete"}
    if not has_place:
        reason = (
            "rows do not say where in the log they are: add the fields of docs/how-to/read-flattened-rows.md, or write "
            "`sequence_by`"
        )
        source.leave_out(f"{at}add.fields", reason)
    return {"tombstones": "ignore"}


def _list_tables(sink: ConnectorFile, source: SourceTopics) -> tuple[list[str], list[str]]:
    """The tables of a sink as `match` has them, and the topics to read."""
    topics, regex = _split_list(sink.get("topics")), sink.get("topics.regex")
    try:
        is_read = re.compile(regex or ".*").fullmatch
    except re.error:
        step = "Write it without what only Java has."
        raise ConfigProblem(f"topics.regex of connector {sink.name} cannot be read", next_step=step) from None
    by_topic = {topic: source.find_table(topic) for topic in topics}
    for topic in (topic for topic, table in by_topic.items() if not table):
        sink.leave_out("topics", "no table is known to be in this topic: add it to `topics`, its table to `tables`", topic)
    tables = [table for table in by_topic.values() if table]
    read = [topic for topic, table in by_topic.items() if table]
    if not topics:
        tables = [table for table in source.tables if not is_exact(table) or is_read(source.name_topic(table))]
        read = [re.sub(r"\*(\.\*)+", "*", re.sub(f"{SCHEMA}|{TABLE}", "*", source.name_topic(t))) for t in tables]
    if regex and not all(map(is_exact, tables)):
        # Kafka Connect matches whole names; here a topic is matched from its start.
        read = [f"^(?:{regex.removeprefix('^').removesuffix('$')})$".replace("${", "$${")]
    if not tables:
        step = "Name the sink connectors that read this source's topics."
        raise ConfigProblem(f"Connector {sink.name} reads no topic of connector {source.connector.name}", next_step=step)
    return tables, read


def _add_targets(
    sink: ConnectorFile, source: SourceTopics, tables: Iterable[str], label: str, sinks: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """`match` and entry of each table; a sink for each schema comes into `sinks`."""
    dsn, default = _read_dsn(sink, label.upper().replace("-", "_"))
    named = {table: _name_target(sink, source, table, default) for table in tables}
    for schema in dict.fromkeys(schema for schema, _ in named.values()):
        if schema not in {sink["schema"] for sink in sinks.values() if sink["dsn"] == dsn}:
            name = label if label not in sinks else _to_name(f"{label}_{schema}")
            sinks[name] = {"kind": "postgres", "dsn": dsn, "schema": schema}
    labels = {sink["schema"]: name for name, sink in sinks.items() if sink["dsn"] == dsn}
    targets = set[tuple[str, str]]()
    for match, (schema, named_target) in named.items():
        (own_schema, own), target, exact = _split_match(match), named_target, is_exact(match)
        if (schema, target) in targets or (not exact and TABLE not in target):
            sink.leave_out("table.name.format", "a target has the rows of one table: read several by a view", target)
            target = f"{own_schema}_{own}" if exact else own
        targets.add((schema, target))
        entry = {"sink": labels[schema]} if target == own else {"sink": labels[schema], "into": target}
        if not exact and target != own:
            group = r"[^.]+" if own_schema == SCHEMA else re.escape(own_schema)
            start = f"(?P<schema>{group})" if SCHEMA in target else group
            entry["into"] = target.replace(SCHEMA, "{schema}").replace(TABLE, "{table}")
            yield f"^{start}\\.(?P<table>.+)$", entry
        else:
            yield match, entry


def _name_target(sink: ConnectorFile, source: SourceTopics, match: str, default: str) -> tuple[str, str]:
    """Schema and name of a table's target, as the connector names them."""
    schema, table = _split_match(match)
    topic = sink.route(source.name_topic(match), exact=is_exact(match))
    name = sink.get("collection.name.format", "table.name.format", default="${topic}")
    if sink.kind == DEBEZIUM_SINK:
        database = source.connector.get("database.dbname") or schema
        name = name.replace("${topic}", topic.replace(".", "_"))
        for field, value in {"schema": schema, "table": table, "db": database, "name": source.prefix}.items():
            name = name.replace(f"${{source.{field}}}", value)
        # Without quotes PostgreSQL takes names in small letters.
        name = name if sink.is_true("quote.identifiers") or not is_exact(match) else name.lower()
    before, target = ["", *name.replace("${topic}", topic).split(".")][-2:]
    if "${" in name.replace("${topic}", "") or SCHEMA in before or TABLE in before:
        reason = "a sink writes one schema: name the tables in table.include.list, or write `into`"
        sink.leave_out("table.name.format", reason)
        return default, table
    return before or default, target


def _read_dsn(sink: ConnectorFile, variable: str) -> tuple[str, str]:
    """The DSN, with variables for what is secret or unknown, and the schema of the connection."""
    url, user = sink.get("connection.url"), sink.get("connection.username", "connection.user")
    sink.get("connection.password")
    if not url.startswith(("jdbc:postgresql:", "${")):
        kind = to_printable(":".join(url.split(":")[:2])) if url.startswith("jdbc:") else "no JDBC URL"
        step = "An import makes sinks in PostgreSQL; README.md has the others."
        raise ConfigProblem(f"Connector {sink.name} writes to {kind}, and not to PostgreSQL", next_step=step)
    if "${" in url:
        sink.leave_out("connection.url", f"the worker fills it in: set {variable}_DSN to postgresql://USER:PASSWORD@HOST/DB")
        return f"${{{variable}_DSN}}", "public"
    address, _, query = url.removeprefix("jdbc:postgresql:").partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    parameters.pop("password", None)
    user = user or parameters.pop("user", "")
    schema, mode = parameters.pop("currentSchema", "public").partition(",")[0], parameters.pop("sslmode", "")
    for name, value in parameters.items():
        sink.leave_out(f"connection.url?{name}", "it is of the JDBC driver; libpq's parameters go into `dsn`", value)
    hosts, _, database = address.removeprefix("//").partition("/") if address.startswith("//") else ("", "", address)
    host, _, others = hosts.rpartition("@")[2].partition(",")
    if others:
        sink.leave_out("connection.url", "one host is connected to: write the one that takes writes", others)
    login = f"${{{variable}_USER}}" if not user or "${" in user else quote(user, safe="")
    server = f"{host or 'localhost'}/{quote(unquote(database), safe='') or login}{f'?sslmode={mode}' if mode else ''}"
    return f"postgresql://{login}:${{{variable}_PASSWORD}}@{server}", schema


def _read_policy(sink: ConnectorFile, source: ConnectorFile) -> dict[str, Any]:
    """The keys of the entries of a sink: policy, deletes, and changes of columns."""
    mode, deletes = sink.get("insert.mode", default="insert").lower(), _read_deletes(sink, source)
    evolution = sink.get("schema.evolution", default="none").lower() == "basic", sink.is_true("auto.evolve")
    # Without evolution both connectors stop at a new column, and write on without a dropped one.
    changes = "evolve" if evolution[sink.kind != DEBEZIUM_SINK] else {"added": "fail", "others": "ignore"}
    keys = sink.get("primary.key.mode", "pk.mode").lower(), sink.get("primary.key.fields", "pk.fields")
    if mode == "insert" or keys[0] == "kafka":
        reason = "`append` writes deletes too (`_cdc_op` is d), without a key; for rows as they are now write `policy: scd1`"
        sink.leave_out("insert.mode", reason, mode)
        return {"policy": "append", "schema_changes": changes}
    if mode == "update":
        sink.leave_out("insert.mode", "rows that the target does not have are inserted, under `policy: scd1`")
    truncates = "t" not in source.get("skipped.operations", default="t") and not sink.is_true("truncate.enabled")
    if deletes == "hard" and truncates:
        sink.leave_out("truncate.enabled", "a truncate of the source empties the target too, by `deletes: hard`", "false")
    # A connector keeps marked rows for ever.
    retention = {"tombstone_retention": "off"} if deletes == "soft" else {}
    return {"policy": "scd1", "deletes": deletes, **retention, "schema_changes": changes}


def _read_deletes(sink: ConnectorFile, source: ConnectorFile) -> str:
    """`deletes`: delete.enabled of the sink, and what ExtractNewRecordState makes of deletes before."""
    enabled, connector = sink.is_true("delete.enabled"), source if source.find_unwrap() else sink
    at = connector.find_unwrap()
    mode = _read_delete_mode(connector, at) if at else "tombstone"
    for name in ("add.fields", "add.headers") if connector is sink and at else ():
        if sink.get(f"{at}{name}"):
            sink.leave_out(
                f"{at}{name}",
                "write `columns: {NAME: {metadata: operation}}` and the like (docs/how-to/transform-columns.md)",
            )
    if mode == "rewrite" or (mode == "rewrite-with-tombstone" and not enabled):
        reason = "deleted rows stay, marked in `_cdc_deleted` instead of `__deleted` (docs/how-to/keep-deleted-rows.md)"
        connector.leave_out(f"{at}delete.tombstone.handling.mode", reason, mode)
        return "soft"
    return "hard" if enabled and mode != "drop" else "ignore"


def _read_keys(sink: ConnectorFile) -> dict[str, Any]:
    """`keys` where the connector names columns; otherwise they are those of the messages' keys, as everywhere."""
    mode, fields = sink.get("primary.key.mode", "pk.mode").lower(), _split_list(sink.get("primary.key.fields", "pk.fields"))
    if mode in ("record_key", "record_value") and fields:
        return {"keys": fields}
    if mode not in ("", "record_key"):
        setting = "primary.key.mode" if sink.kind == DEBEZIUM_SINK else "pk.mode"
        sink.leave_out(setting, "the target's key is that of the messages; other columns are `keys` of the table")
    return {}


def _add_transactions(settings: dict[str, Any], source: SourceTopics, covered: set[str]) -> None:
    """`transactions`, where the connector marks them and all of its tables are read."""
    connector, setting = source.connector, "provide.transaction.metadata"
    if not connector.is_true(setting):
        return
    name = connector.get("topic.transaction", default="transaction")
    topic = connector.route(source.delimiter.join((source.prefix, name)))
    is_whole = covered.issuperset(source.tables) and not any(pattern.startswith("^") for pattern in settings["topics"])
    if settings.get("flattened") or not is_whole:
        reason = (
            "tables do not wait for each other: that needs whole change events of all tables "
            "(docs/how-to/keep-transactions-together.md)"
        )
        connector.leave_out(setting, reason)
        return
    settings["transactions"] = {"topic": topic}
    if not TopicFilter(settings["topics"])(topic):
        settings["topics"].append(topic)


def _take_defaults(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Takes out of the entries what all of them say, to write it once, as `defaults`."""
    entries = [entry for table in tables.values() for entry in table["to"]]
    shared = {k: entries[0][k] for k in LANE_KEYS if k in entries[0] and all(e.get(k) == entries[0][k] for e in entries)}
    for entry in entries:
        for key in shared:
            del entry[key]
    return {"defaults": shared} if shared else {}


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split_match(match: str) -> tuple[str, str]:
    """Schema and table of a name or glob, with SCHEMA and TABLE for what it leaves open."""
    schema, _, table = match.partition(".")
    return (SCHEMA, TABLE) if match == "*" else (schema, TABLE if table == "*" else table)


def _to_name(text: str) -> str:
    """A name for a pipeline, a source or a sink."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    return (name if name[:1].isascii() and name[:1].isalpha() else f"c_{name}")[:63]
