"""Check of Kafka Connect: the connector that writes the topics, its tasks, and settings that lose data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from replicator.domain.transactions import Connector, find_row_loss
from replicator.ports.runtime import Diagnosis

from ...kafka.connect_worker import FAILURES, TIMEOUT_SECONDS, ConnectWorker

ADVICE = (
    (r"wal_level", "ALTER SYSTEM SET wal_level = logical; on the source, and restart that server."),
    (
        r"publication",
        "CREATE PUBLICATION in the source database, as publication.name says.",
    ),
    (r"slot .* is active|already active", "Another connector reads this slot: give this one another slot.name."),
    (r"slot .*(lost|invalid)|can no longer get changes", "Drop the slot; the connector then takes a new snapshot."),
    (r"password authentication|no pg_hba", "Correct database.user and database.password of the connector."),
    (
        r"connection .*refused|unknown ?host|timed out|could not connect",
        "Start the source database, or correct its address.",
    ),
    (r"permission denied|must be superuser|must have replication", "Grant the connector's role REPLICATION and SELECT."),
)
"""Patterns in a trace, and the advice for each."""
COMMIT = "COMMIT"
"""`messageType` in the offset of PostgreSQL's connector between transactions."""
SET_BACK = "docs/how-to/restart-a-debezium-connector.md"
SECRET = re.compile(r"(?i)(password\s*[=:]\s*)\S+")


class ConnectCheck:
    """`ports.runtime.Check`. Options: `url`: the worker; None if unknown. `connector`: a name; None for all that write
    `topics` of the source. `files`: connector files, of which those of the same connectors are checked. `wanted`: as in
    `find_losses`. `dsn`: the source database, if it is a known PostgreSQL server."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._url = str(options.get("url") or "").rstrip("/")
        self._worker = ConnectWorker(self._url)
        self._connector = str(options.get("connector") or "")
        self._topics = tuple(options.get("topics", ()))
        self._files = tuple(map(Path, options.get("files", ())))
        self._wanted = frozenset(options.get("wanted", ()))
        self._dsn = str(options.get("dsn") or "")

    def diagnose(self) -> Sequence[Diagnosis]:
        diagnoses = list(self._check_files())
        if not self._url:
            return diagnoses
        try:
            names = [self._connector]
            if not self._connector:
                names = sorted(self._worker.get("/connectors") or ())
                names = [name for name in names if self._is_mine(name, self._worker.get_of(name, "config") or {})]
            if not names:
                sentence = f"No connector at {self._url} writes topics of this source."
                step = "Name it with `connect: {url: ..., connector: ...}` of the source, or correct `topics`."
                diagnoses.append(Diagnosis("warning", self._name, sentence, step))
            for name in names:
                status = self._worker.get_of(name, "status")
                if status is None:
                    registered = ", ".join(sorted(self._worker.get("/connectors") or ())) or "none"
                    sentence = f"Connector {name} is not registered; there is {registered}."
                    step = (
                        "Correct `connect.connector` of the source, or register it (`replicator stack up` in development)."
                    )
                    diagnoses.append(Diagnosis("error", self._name, sentence, step))
                    continue
                diagnoses += self._check_states(name, status)
                config = self._worker.get_of(name, "config")
                if config is not None:
                    diagnoses += self._check_config(f"connector {name} as it runs", config)
                    diagnoses += self._check_row_losses(name, status, config)
                    diagnoses += self._check_offset(name, status, config)
        except FAILURES as error:
            why = getattr(error, "reason", None) or type(error).__name__
            step = "Start Kafka Connect (`replicator stack up` in development), or correct `connect.url`."
            sentence = f"Kafka Connect at {self._url} does not answer as it should: {why}."
            diagnoses.append(Diagnosis("error", self._name, sentence, step))
        return diagnoses

    def _check_row_losses(self, name: str, status: Mapping[str, Any], config: Mapping[str, str]) -> Iterator[Diagnosis]:
        """A warning if this version of the connector loses rows of this database."""
        plugin = config.get("connector.class", "")
        version = status["connector"].get("version") or next(
            (one["version"] for one in self._worker.get("/connector-plugins") or () if one.get("class") == plugin), ""
        )
        connector = Connector(find_family(config), str(version), _has_metadata(config))
        if not find_row_loss(connector):
            return
        server = None
        with suppress(psycopg.Error):  # The check of the database reports it.
            if self._dsn:
                with psycopg.connect(self._dsn, connect_timeout=TIMEOUT_SECONDS) as connection:
                    server = connection.info.server_version // 10_000
        if loss := find_row_loss(connector, server=server):
            yield Diagnosis("warning", self._name, f"{loss.sentence[:-1]} (connector {name}).", loss.next_step)

    def _check_offset(self, name: str, status: Mapping[str, Any], config: Mapping[str, str]) -> Iterator[Diagnosis]:
        """A warning if a connector does not run and its offset is inside a transaction: it may skip rows on resume."""
        runs = {part["state"] for part in (status["connector"], *status.get("tasks", ()))} == {"RUNNING"}
        if runs or find_family(config) != "postgresql" or not _has_metadata(config):
            return
        path = f"/connectors/{quote(name, safe='')}/offsets"
        for entry in (self._worker.get(path) or {}).get("offsets", ()):
            if (entry["offset"] or {}).get("messageType", COMMIT) != COMMIT:
                sentence = f"Connector {name} is stopped within a transaction: it may skip rows of it when it continues."
                step = f"Set it back to the last commit before ({self._url}{path}): {SET_BACK}."
                yield Diagnosis("warning", self._name, sentence, step)

    def _is_mine(self, name: str, config: Mapping[str, str]) -> bool:
        """True if the connector writes topics of the source: by its name, or by the prefix of its topics."""
        prefix = config.get("topic.prefix") or config.get("database.server.name") or ""
        if name == self._connector or not prefix or "${" in prefix:
            return name == self._connector
        return any(_has_prefix(pattern, prefix) for pattern in self._topics)

    def _check_files(self) -> Iterator[Diagnosis]:
        for file in self._files:
            where = f"{file.parent.name}/{file.name}"
            try:
                document = json.loads(file.read_text())
                config = document.get("config", document)
                name = str(document.get("name", config.get("name", "")))
                if self._is_mine(name, config):
                    yield from self._check_config(where, config)
            except FAILURES as error:
                sentence = f"{where} cannot be read as a connector: {type(error).__name__}."
                yield Diagnosis("warning", self._name, sentence, "Write it as JSON with `name` and `config`.")

    def _check_config(self, where: str, config: Mapping[str, str]) -> Iterator[Diagnosis]:
        losses = list(find_losses(config, self._wanted))
        for loss in losses:
            by_default = "" if loss.setting in config else " (the default)"
            sentence = f"{loss.setting} is {loss.value}{by_default} in {where}: {loss.lost}."
            yield Diagnosis("warning", self._name, sentence, loss.step)
        if not losses and find_family(config):
            yield Diagnosis("ok", self._name, f"No setting of {where} is known to lose values or order.")

    def _check_states(self, name: str, status: Mapping[str, Any]) -> Iterator[Diagnosis]:
        tasks = status.get("tasks", [])
        yield self._check_state(name, f"Connector {name}", status["connector"])
        for task in tasks:
            yield self._check_state(name, f"Task {task['id']} of connector {name}", task)
        if not tasks and status["connector"]["state"] == "RUNNING":
            step = "Wait a few seconds. If it stays so, read the worker's log (`replicator stack logs debezium`)."
            yield Diagnosis("warning", self._name, f"Connector {name} has no task.", step)

    def _check_state(self, name: str, subject: str, part: Mapping[str, Any]) -> Diagnosis:
        state = part["state"]
        if state == "RUNNING":
            return Diagnosis("ok", self._name, f"{subject} runs.")
        command = f"{self._url}/connectors/{name}"
        if state == "FAILED":
            cause = find_cause(part.get("trace", ""))
            restart = f"curl -X POST '{command}/restart?includeTasks=true&onlyFailed=true'"
            return Diagnosis(
                "error", self._name, f"{subject} has failed: {cause}.", f"{find_advice(cause)} Then: {restart}".strip()
            )
        step = f"curl -X PUT {command}/resume" if state in ("PAUSED", "STOPPED") else "Wait a few seconds and check again."
        return Diagnosis("warning", self._name, f"{subject} is {state}.", step)


def _has_metadata(config: Mapping[str, str]) -> bool:
    return str(config.get("provide.transaction.metadata", "false")).lower() == "true"


def _has_prefix(pattern: str, prefix: str) -> bool:
    """True if a topic, glob or regular expression of the source is for topics with the prefix."""
    if pattern.startswith("^"):
        return pattern[1:].replace("\\", "").startswith(f"{prefix}.")
    return pattern.startswith(f"{prefix}.") or fnmatchcase(f"{prefix}.", pattern.partition(".")[0] + ".")


def find_cause(trace: str) -> str:
    """The first line of a Java trace and its innermost cause, on one line, without class names and passwords."""
    lines = [line for line in trace.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    texts = []
    for line in (*lines[:1], *causes[-1:]):
        # `Caused by: a.b.SomeException: text` becomes `text`.
        message = re.sub(r"^(Caused by: )?([\w$]+\.)+[\w$]+(: |$)", "", line.strip()).rstrip(". ")
        texts.append(message or line.strip())
    return SECRET.sub(r"\1***", ": ".join(dict.fromkeys(texts)) or "no trace is given")


def find_advice(cause: str) -> str:
    """The advice for a cause; empty if it is unknown."""
    return next((step for pattern, step in ADVICE if re.search(pattern, cause, re.I)), "")


# Settings of connectors that lose values, changes or their order before a record is written.

ALL = ("postgresql", "mysql", "mariadb", "oracle", "sqlserver", "mongodb")
OF_TABLES = ALL[:-1]
BINLOG = ("mysql", "mariadb")
JSON_CONVERTER, AVRO_CONVERTER = "json.JsonConverter", "AvroConverter"
PLACEHOLDER = "__debezium_unavailable_value"
LEFT_OUT = frozenset({"warn", "skip", "ignore"})
ROUTING = "io.debezium.transforms.partitions.PartitionRouting"


@dataclass(frozen=True, slots=True)
class SettingLoss:
    """A setting, its value or default, the loss, and the next step."""

    setting: str
    value: str
    lost: str
    step: str


@dataclass(frozen=True, slots=True)
class SettingRule:
    """A rule for a setting that can lose data.

    - `setting`: a regular expression for the whole name.
    - `default`: the value of a missing setting; without it, missing settings are fine.
    - `bad`: lossy values in lower case; with `good`, all others are lossy.
    - Conditions: `of` (kinds of database), `wanted` (a feature of the pipeline), and `converter` (its class).
    """

    setting: str
    lost: str
    step: str
    default: str | None = None
    bad: frozenset[str] = frozenset()
    good: frozenset[str] | None = None
    of: tuple[str, ...] = ALL
    wanted: str = ""
    converter: str = ""


def _one_of(*values: str) -> frozenset[str]:
    return frozenset(values)


def _failure_rule(setting: str, lost: str, connectors: tuple[str, ...] = ALL) -> SettingRule:
    return SettingRule(setting, lost, "Set it to fail, or leave it out.", bad=LEFT_OUT, of=connectors)


def _null_default_rules(part: str) -> tuple[SettingRule, SettingRule]:
    lost = "NULL in a column with a default is sent as the default"
    json, avro = f"{part}.converter.replace.null.with.default", f"{part}.converter.ignore.default.for.nullables"
    return (
        SettingRule(re.escape(json), lost, "Set it to false.", "true", _one_of("true"), converter=JSON_CONVERTER),
        SettingRule(re.escape(avro), lost, "Set it to true.", "false", _one_of("false"), converter=AVRO_CONVERTER),
    )


RULES = (
    SettingRule(
        "decimal.handling.mode",
        "decimals become the nearest double",
        "Set it to precise.",
        bad=_one_of("double"),
        of=OF_TABLES,
    ),
    SettingRule(
        "time.precision.mode",
        "times have milliseconds, and finer parts are cut off",
        "Leave it out.",
        bad=_one_of("connect"),
        of=OF_TABLES,
    ),
    SettingRule(
        "interval.handling.mode",
        "an interval becomes microseconds, a month of it 30.4375 days",
        "Set it to string.",
        "numeric",
        _one_of("numeric"),
        of=("postgresql", "oracle"),
    ),
    SettingRule(
        "binary.handling.mode",
        "bytes come as text, and are a column of text in the targets",
        "Set it to bytes.",
        good=_one_of("bytes"),
        of=OF_TABLES,
    ),
    SettingRule(
        "bigint.unsigned.handling.mode",
        "unsigned numbers from 2^63 on come negative",
        "Set it to precise.",
        "long",
        _one_of("long"),
        of=BINLOG,
    ),
    SettingRule("lob.enabled", "large objects are not sent", "Set it to true.", "false", _one_of("false"), of=("oracle",)),
    *_null_default_rules("key"),
    *_null_default_rules("value"),
    SettingRule(
        "unavailable.value.placeholder",
        "values that were not sent are taken for this text",
        f"Leave it out: only {PLACEHOLDER} is recognised.",
        good=_one_of(PLACEHOLDER),
    ),
    SettingRule("errors.tolerance", "records that cannot be converted are left out", "Set it to none.", bad=_one_of("all")),
    _failure_rule("event.processing.failure.handling.mode", "changes that the connector cannot read are left out"),
    _failure_rule(
        "event.deserialization.failure.handling.mode", "changes that the connector cannot read are left out", BINLOG
    ),
    _failure_rule(
        "inconsistent.schema.handling.mode", "changes of tables that the connector does not know are left out", BINLOG
    ),
    SettingRule(
        "event.converting.failure.handling.mode",
        "values that cannot be converted become NULL, without a message",
        "Set it to fail, or to warn to find them in the connector's log.",
        bad=_one_of("skip"),
    ),
    SettingRule(
        r"(schema|database)\.history\.(internal\.)?skip\.unparseable\.ddl",
        "tables are read with columns that they no longer have",
        "Set it to false.",
        bad=_one_of("true"),
        of=("mysql", "mariadb", "oracle", "sqlserver"),
    ),
    SettingRule(
        "skipped.operations",
        "truncates, or what else it names, are not sent",
        "Set it to none.",
        "t",
        good=_one_of("none"),
    ),
    SettingRule(
        "slot.drop.on.stop",
        "what changes while the connector is stopped is never sent",
        "Set it to false.",
        bad=_one_of("true"),
        of=("postgresql",),
    ),
    SettingRule(
        "provide.transaction.metadata",
        "the ends of transactions, which `transactions` of the source waits for, are not sent",
        "Set it to true.",
        "false",
        _one_of("false"),
        wanted="transactions",
    ),
    SettingRule(
        "provide.transaction.metadata",
        "the order of changes within a transaction is not sent",
        "Set it to true.",
        "false",
        _one_of("false"),
        of=("mariadb",),
    ),
    SettingRule(
        "tombstones.on.delete",
        "a topic that is compacted keeps rows that were deleted",
        "Set it to true: tables of the source say `tombstones: delete`.",
        bad=_one_of("false"),
        wanted="tombstones",
    ),
    SettingRule(
        r"transforms\.[^.]+\.delete\.(tombstone\.)?handling\.mode",
        "deletes are not sent",
        "Set it to rewrite-with-tombstone.",
        bad=_one_of("drop"),
    ),
    SettingRule(
        r"transforms\.[^.]+\.type",
        "the changes of a row may come in several partitions, in any order",
        "Leave this transform out: the message's key keeps the changes of a row together.",
        bad=_one_of(ROUTING.lower()),
    ),
    SettingRule(
        "producer.override.acks", "a broker that is lost takes records with it", "Leave it out.", good=_one_of("all", "-1")
    ),
    SettingRule(
        "producer.override.enable.idempotence",
        "records that are sent again change their order",
        "Leave it out.",
        bad=_one_of("false"),
    ),
)  # fmt: skip


def find_family(config: Mapping[str, str]) -> str:
    """The kind of database that a connector reads; empty if it is not Debezium's."""
    match = re.fullmatch(r"io\.debezium\.connector\.(\w+)\.\w+", config.get("connector.class", ""))
    return match[1] if match else ""


def find_losses(config: Mapping[str, str], wanted: frozenset[str] = frozenset()) -> Iterator[SettingLoss]:
    """The losses by a connector's settings. `wanted`: features of the pipeline: transactions, tombstones. Values that the
    worker fills in (`${...}`) are unknown and skipped, and so are the worker's own converters."""
    kind, names = find_family(config), set[str]()
    for rule in RULES:
        part = rule.setting.partition("\\.")[0]
        is_converted = not rule.converter or config.get(f"{part}.converter", "").endswith(rule.converter)
        if kind not in rule.of or (rule.wanted and rule.wanted not in wanted) or not is_converted:
            continue
        pairs = [(name, str(value).strip()) for name, value in config.items() if re.fullmatch(rule.setting, name)]
        if not pairs and rule.default is not None:
            pairs = [(rule.setting.replace("\\", ""), rule.default)]
        for name, value in pairs:
            text = value.lower()
            is_lossy = text in rule.bad if rule.good is None else text not in rule.good
            if is_lossy and name not in names and "${" not in value:
                names.add(name)
                yield SettingLoss(name, value, rule.lost, rule.step)
