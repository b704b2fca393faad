"""Settings of Debezium's connectors that lose values, changes or their order before a record is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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


def _failure_rule(setting: str, lost: str, of: tuple[str, ...] = ALL) -> SettingRule:
    return SettingRule(setting, lost, "Set it to fail, or leave it out.", bad=LEFT_OUT, of=of)


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
    found = re.fullmatch(r"io\.debezium\.connector\.(\w+)\.\w+", config.get("connector.class", ""))
    return found[1] if found else ""


def find_losses(config: Mapping[str, str], wanted: frozenset[str] = frozenset()) -> Iterator[SettingLoss]:
    """The losses by a connector's settings. `wanted`: features of the pipeline: transactions, tombstones. Values that the
    worker fills in (`${...}`) are unknown and skipped, and so are the worker's own converters."""
    kind, told = find_family(config), set[str]()
    for rule in RULES:
        if kind not in rule.of or (rule.wanted and rule.wanted not in wanted) or not _is_converted(rule, config):
            continue
        for name, value in _find_values(rule, config):
            if name not in told and _is_lossy(rule, value):
                told.add(name)
                yield SettingLoss(name, value, rule.lost, rule.step)


def _is_converted(rule: SettingRule, config: Mapping[str, str]) -> bool:
    part = rule.setting.partition("\\.")[0]
    return not rule.converter or config.get(f"{part}.converter", "").endswith(rule.converter)


def _find_values(rule: SettingRule, config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    found = [(name, str(value).strip()) for name, value in config.items() if re.fullmatch(rule.setting, name)]
    if not found and rule.default is not None:
        found = [(rule.setting.replace("\\", ""), rule.default)]
    yield from (pair for pair in found if "${" not in pair[1])


def _is_lossy(rule: SettingRule, value: str) -> bool:
    said = value.lower()
    return said in rule.bad if rule.good is None else said not in rule.good
