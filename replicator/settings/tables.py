"""Settings of tables: their columns, their entries, and their policies."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from replicator.domain.policy import Policy
from replicator.domain.transform.columns import NO_COLUMN_RULE, AddedColumn, ColumnRule, ColumnTransforms, Mask, MaskKind
from replicator.ports.options import (
    VACUUM,
    Count,
    Duration,
    FromZero,
    Glob,
    Into,
    PositiveDuration,
    Retention,
    Strict,
    make_value_error,
    unset,
)

from .expressions import TYPES, InvalidExpressionText, find_type, parse_condition, parse_expression

# Rules of tables and their entries for single columns.

DROP = "drop"
FIELD = "payload."
"""The beginning of names of fields of an event's payload."""
MIN_KEY_BYTES = 16
"""Characters of a key: values that are guessed can be tried with short ones."""

Metadata = Literal["topic", "partition", "offset", "source_time", "transaction", "operation"]


def _check_type(text: str) -> str:
    if find_type(text) is None:
        types = ", ".join(("decimal(12,2)", *TYPES))
        raise make_value_error("value", f"is not a type for 'cast'; known: {types}")
    return text


def _check_name(text: str) -> str:
    if text != text.strip() or not text or any(ord(character) < 32 for character in text):
        raise make_value_error("value", "must be a column's name: not empty, no spaces around it, no control characters")
    return text


def _check_with(parse: Callable[[str], object], code: str) -> AfterValidator:
    """Text that `parse` can read."""

    def check(text: str) -> str:
        try:
            parse(text)
        except InvalidExpressionText as why:
            raise make_value_error(code, str(why)) from None
        return text

    return AfterValidator(check)


def _check_key(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < MIN_KEY_BYTES:
        raise make_value_error(
            "value", f"must be a secret of at least {MIN_KEY_BYTES} characters, for example from `openssl rand -hex 32`"
        )
    return secret


class ColumnSettings(Strict):
    """The rule for one column of the source, or a column to add. `drop` alone can be written as `COLUMN: drop`."""

    drop: Literal[True] | None = None
    """The target does not have the column."""
    mask: MaskKind | None = None
    """Replaces the values. `nothing`: NULL. `fixed`: the `text`. `hmac`: HMAC-SHA-256 under `key`, also for key
    columns. `truncate`: the first `length` characters and a part of that HMAC."""
    key: Annotated[SecretStr, AfterValidator(_check_key)] | None = None
    """`hmac` and `truncate`: the secret key, with at least 16 characters."""
    length: FromZero | None = None
    """`truncate`: how many characters stay as they are."""
    text: str | None = None
    """`fixed`: the text that replaces all values."""
    cast: Annotated[str, AfterValidator(_check_type)] | None = None
    """The Arrow type of the column in the target, such as `int64` or `decimal(12,2)`. A change with a value that does
    not fit is rejected."""
    rename: Annotated[str, AfterValidator(_check_name)] | None = None
    """The name of the column in the target."""
    metadata: Metadata | None = None
    """Adds a column with metadata of the record."""
    constant: str | int | float | bool | None = None
    """Adds a column with the same value in every row."""
    expression: Annotated[str, _check_with(parse_expression, "expression")] | None = None
    """Adds a column that is computed from columns of the source, such as `concat(first, ' ', last)`."""

    @model_validator(mode="after")
    def _check_whole(self) -> ColumnSettings:
        keys = self.model_fields_set
        adds, changes = keys & {"metadata", "constant", "expression"}, keys & {"drop", "mask", "cast", "rename"}
        if not adds and not changes:
            raise make_value_error(
                "place", "has no key for the column; write one of drop, mask, cast, rename, metadata, constant or expression"
            )
        if len(adds) > 1 or (adds and changes - {"cast"}):
            raise make_value_error(
                "contradiction", "adds a column, by one of metadata, constant and expression, and perhaps a cast"
            )
        if isinstance(self.constant, int) and not -(2**63) <= self.constant < 2**63:
            raise make_value_error("place", "has a 'constant' of more than 64 bits; write it as text, with a 'cast'")
        if "drop" in keys and len(keys) > 1:
            raise make_value_error("contradiction", "drops its column, so it can have no other key")
        needed = {"hmac": {"key"}, "truncate": {"key", "length"}, "fixed": {"text"}}.get(self.mask or "", set())
        present = keys & {"key", "length", "text"}
        for name in sorted(needed - present):
            raise make_value_error("place", f"needs '{name}' for 'mask: {self.mask}'")
        for name in sorted(present - needed):
            raise make_value_error("place", f"has '{name}', but only another mask uses this key")
        return self

    @property
    def is_private(self) -> bool:
        """It keeps values from being stored."""
        return self.mask is not None or self.drop is not None

    def to_mask(self) -> Mask | None:
        """Its mask."""
        if self.mask is None:
            return None
        key = self.key.get_secret_value().encode() if self.key else b""
        return Mask(self.mask, key, self.length or 0, self.text or "")

    def to_rule(self) -> ColumnRule:
        """The rule for the source's column."""
        cast = find_type(self.cast) if self.cast else None
        return ColumnRule(self.drop is not None, self.to_mask(), cast, self.rename or "")

    def to_added_column(self) -> AddedColumn | None:
        """The column to add, or None for a rule of a source column."""
        if self.metadata is None and self.constant is None and self.expression is None:
            return None
        expression = parse_expression(self.expression) if self.expression is not None else None
        return AddedColumn(self.metadata or "", self.constant, find_type(self.cast) if self.cast else None, expression)


ColumnRules = Annotated[
    dict[
        str,
        Annotated[
            ColumnSettings,
            BeforeValidator(
                lambda rule: {"drop": True} if rule == DROP else rule,
                json_schema_input_type=ColumnSettings | Literal["drop"],
            ),
        ],
    ],
    Field(min_length=1),
]
"""By column."""


def build_column_transforms(
    rules: Mapping[str, ColumnSettings], private: Container[str], declared: Container[str] = ()
) -> ColumnTransforms:
    """The rules as a lane follows them; the columns that are `private` reach it masked. Records need not have those that are
    `declared`."""
    added = {name: column for name, rule in rules.items() if (column := rule.to_added_column()) is not None}
    changed = {name: rule.to_rule() for name, rule in rules.items() if name not in added}
    left = {n: replace(rule, mask=None) if n in private else rule for n, rule in changed.items()}
    changes = ((n, replace(rule, can_be_missing=n in declared)) for n, rule in left.items() if rule != NO_COLUMN_RULE)
    return ColumnTransforms(tuple(changes), tuple(added.items()))


# Settings of tables: which source tables, where to, and how.

Deletes = Literal["hard", "soft", "ignore"]
PartialUpdates = Literal["ordered", "by_column"]
Tombstones = Literal["delete", "ignore"]
OutOfRangeRule = Literal["reject", "null", "clamp"]
OutOfRangeRules = OutOfRangeRule | dict[str, OutOfRangeRule]
SchemaChanges = Literal["evolve", "try_evolve", "ignore", "fail", "quarantine"]
DroppedColumns = Literal["keep", "remove"]
POLICY_OF_SCD_TYPE: dict[str, Policy] = {"1": "scd1", "2": "scd2"}
TABLE_OPTIONS = ("partition_by", "cluster_by", "change_data_feed", "deletion_vectors", "compact_every", *VACUUM)
"""Keys that a sink interprets, not the core: options of Delta tables."""

EXCLUSIVE_KEYS = (
    ("column_list", "except_column_list"),
    ("track_history_column_list", "track_history_except_column_list"),
    ("ignore_null_updates_column_list", "ignore_null_updates_except_column_list"),
)
IGNORE_NULL_KEYS = ("ignore_null_updates", *EXCLUSIVE_KEYS[2])
KEY_GROUPS = (("policy", "stored_as_scd_type"), *EXCLUSIVE_KEYS[:2], IGNORE_NULL_KEYS)
"""Keys that mean one thing together: the nearest level with any of them decides alone."""


def _check_columns(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        raise make_value_error("contradiction", "names a column twice")
    if any(name.startswith("_cdc_") or name == "_event_id" for name in names):
        raise make_value_error("value", "names a column of replicator's own; name columns of the source")
    return names


Columns = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
Layout = Annotated[Columns, AfterValidator(_check_columns)]
Order = Annotated[
    Layout,
    Field(json_schema_extra={"type": ["array", "string"]}),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
"""Columns, or the name of one."""


Condition = Annotated[str, _check_with(parse_condition, "condition")]


class SchemaChangeModes(Strict):
    """The reaction to each kind of schema change. The words are those of `schema_changes`."""

    added: SchemaChanges | None = None
    """A column was added."""
    dropped: SchemaChanges | None = None
    """A column was dropped. A rename without `renamed_columns` is a dropped and an added column."""
    readded: SchemaChanges | None = None
    """A dropped column was added again. `evolve` removes its old values, `ignore` keeps them."""
    renamed: SchemaChanges | None = None
    """A column has the new name from `renamed_columns`."""
    widened: SchemaChanges | None = None
    """The new type of a column holds every value of the old one."""
    narrowed: SchemaChanges | None = None
    """The old type of a column holds every value of the new one."""
    type_changed: SchemaChanges | None = None
    """A column has another type, and neither holds every value of the other."""
    key_changed: SchemaChanges | None = None
    """The table has another key. The lane always stops."""
    table_dropped: SchemaChanges | None = None
    """The table was dropped, as its own stream says (`canal_json`, `maxwell_json`). The target keeps its rows."""
    others: SchemaChanges | None = unset("evolve")
    """All kinds that are not set here."""


class VerifySettings(Strict):
    """When the running daemon compares a target with its source. Without `database` there, and under `append`, it compares
    with the event log of the table."""

    every: Retention
    """The time between two comparisons of a target. `off`: never."""
    rows_per_second: Count | None = None
    """Compare at most this number of rows of the source per second. By default without a limit."""


ScdType = Annotated[
    Literal[1, 2], BeforeValidator(lambda value: int(value) if isinstance(value, str) and value.isdigit() else value)
]
OnReject = Literal["continue", "hold_key", "stop_lane"]


class PolicyKeys(Strict):
    """Keys of an entry of `to`, of its table or of `defaults`. The nearest one counts, in this order."""

    policy: Policy | None = unset("scd1")
    """`scd1`: current rows. `append`: every change as a row. `scd2`: every version of every row."""
    stored_as_scd_type: ScdType | None = None
    """Another way to write `policy`: 1 means `scd1`, 2 means `scd2`."""
    keys: Columns | None = None
    """The key columns. By default the change events define the key."""
    deletes: Deletes | None = unset("hard")
    """`hard`: a delete removes the target's row. `soft` (scd1): the row stays, marked in `_cdc_deleted` and
    `_cdc_deleted_at`. `ignore`: deletes and truncates change nothing. A key change still removes the row of the old
    key."""
    tombstones: Tombstones | None = None
    """The meaning of records without a value. `ignore`: nothing. `delete`: a delete of the key, which compacted topics
    need. The table is then ordered by offset. `delete` is the default for `rows` without `operation_column` and
    `sequence_columns`, otherwise `ignore`. See docs/how-to/read-compacted-topics.md."""
    out_of_range: OutOfRangeRules | None = unset("reject")
    """The fate of dates and times that no target can hold, such as infinity or the year 10000. `reject`: the
    change is rejected. `"null"`: the value becomes NULL. `clamp`: it becomes the nearest possible value. One word, or
    a mapping from columns. Values in key columns are always rejected. Not for `debezium_outbox`."""
    schema_changes: SchemaChanges | SchemaChangeModes | None = unset("evolve")
    """The reaction when the source's columns change. `evolve`: the target follows. `try_evolve`: it follows if nothing
    is lost; otherwise it stays, and rows that do not fit are rejected. `ignore`: the target stays as it is. `fail`:
    the lane stops. `quarantine`: the lane waits for `replicator lanes resume LANE --accept-schema N`. One word, or a
    mapping from kinds of changes."""
    dropped_columns: DroppedColumns | None = unset("keep")
    """The fate, under `evolve`, of a column that the source has dropped. `keep`: it stays, and is NULL in new rows.
    `remove`: it is removed."""
    renamed_columns: dict[str, str] | None = None
    """Renamed columns of the source: a mapping from old to new names. Without it, a rename is a dropped and an added
    column."""
    into: Into | None = None
    """The name of the target. By default the source table's name without its schema. If `match` is a regular
    expression, `{1}` and `{name}` stand for its groups."""
    sequence_by: Order | None = None
    """The columns that order the changes of a row. For equal values, the order of the source's log decides, as it does
    by default. A change with NULL or no value in one of them is rejected as SEQUENCE."""
    apply_as_deletes: Condition | None = None
    """A condition on the source's columns, such as `operation = 'DELETE'`. Rows that meet it are deletes."""
    apply_as_truncates: Condition | None = None
    """scd1: a condition on the source's columns. A row that meets it removes all older rows of the target."""
    ignore_null_updates: bool | None = unset(False)
    """scd1: with true, NULL in a change keeps the value in the target's row. A new row gets the NULL."""
    ignore_null_updates_column_list: Layout | None = None
    """scd1: the same, only for these columns."""
    ignore_null_updates_except_column_list: Layout | None = None
    """scd1: the same, for all columns except these."""
    partial_updates: PartialUpdates | None = unset("ordered")
    """scd1: how changes are ordered that contain only some columns. `ordered`: the source sends the changes of a row
    in order. `by_column`: changes come in any order, and each column keeps its newest value."""
    column_list: Layout | None = None
    """The columns of the target. They must include the key. By default all columns."""
    except_column_list: Layout | None = None
    """The columns that the target does not have."""
    track_history_column_list: Columns | None = None
    """scd2: only changes of these columns start a new version. Other changes update the open version. By default all
    columns are tracked."""
    track_history_except_column_list: Columns | None = None
    """scd2: changes of only these columns start no new version."""
    watermark: Duration | None = None
    """append: how far an event time may be behind the newest one of its partition. Changes further behind are rejected
    as LATE. By default no change is late."""
    tombstone_retention: Retention | None = unset("7 days")
    """scd1: how long deletes are remembered, so that an older change cannot bring a row back. `off`: for ever. An
    older change without a row in the target is rejected as LATE. With `partial_updates: by_column` it is always `off`."""
    partition_by: Layout | None = None
    """The partition columns of a new table. Their types: text, whole number, boolean or date."""
    cluster_by: Layout | None = None
    """Spark only: up to four columns by which rows are clustered. Their types: text, whole number, date, timestamp or
    decimal. Then only Spark can write the table."""
    change_data_feed: bool | None = unset(False)
    """True switches on the change data feed for later commits. False does not switch it off again."""
    deletion_vectors: bool | None = unset(False)
    """Spark only: true marks rows as deleted instead of rewriting their files."""
    compact_every: FromZero | None = None
    """Compact the small files after this number of commits. 0: never. By default as the sink says."""
    vacuum_every: Duration | None = None
    """The time between two vacuums. `0 days`: never. By default as the sink says."""
    vacuum_retain: PositiveDuration | None = None
    """How long a vacuum leaves old files, rounded up to whole hours. By default as the sink says."""
    columns: ColumnRules | None = None
    """Rules for single columns by name: drop, rename, cast or mask them, or add columns. A mask or drop of a table
    holds for all that is stored, also in event logs and dead letters. A rule of an entry holds for its target only."""
    where: Condition | None = None
    """A condition on the source's columns. The target contains the rows that meet it. A row that no longer meets it
    leaves the target. Under `append`, changes that do not meet it are left out."""
    verify: VerifySettings | None = None
    """When the running daemon compares the target with its source. By default never."""

    def get_policy(self) -> Policy | None:
        """The policy of this level, by either of its two names. None if the level sets none."""
        return self.policy or POLICY_OF_SCD_TYPE.get(str(self.stored_as_scd_type))

    @model_validator(mode="after")
    def _check_consistent(self) -> PolicyKeys:
        by_type = POLICY_OF_SCD_TYPE.get(str(self.stored_as_scd_type))
        if self.policy and by_type and self.policy != by_type:
            raise make_value_error(
                "contradiction", "has a 'policy' and a 'stored_as_scd_type' that contradict each other; keep one"
            )
        renames = self.renamed_columns or {}
        if len(set(renames.values())) < len(renames) or set(renames) & set(renames.values()):
            raise make_value_error("contradiction", "renames two columns to one, or one twice, in 'renamed_columns'")
        lists = self.ignore_null_updates_column_list or self.ignore_null_updates_except_column_list
        if self.ignore_null_updates is False and lists:
            raise make_value_error(
                "contradiction", "has 'ignore_null_updates: false' and a list of columns for it; keep one"
            )
        if self.keys and len(set(self.keys)) != len(self.keys):
            raise make_value_error("contradiction", "names a key column twice")
        return self


class EntrySettings(PolicyKeys):
    """One entry of `to`: a lane into a sink. All policy keys are allowed too."""

    sink: str
    """The name of a sink. For events of an outbox also `event_store`."""


class TableSettings(PolicyKeys):
    """The tables that `match` names, and where their changes go. All policy keys are allowed too."""

    match: Glob
    """A table pattern: the table's name in the source database with its schema, a glob or a regular expression. Only
    the entry with the most specific match counts."""
    source: str
    """The name of a source."""
    declared: dict[str, str] | None = Field(None, alias="schema")
    """Columns and their Arrow types, for sources without types."""
    to: list[EntrySettings]
    """The lanes of the table: one entry for each target."""
    on_reject: OnReject | None = None
    """The reaction when a record of the table is rejected. By default as the top level says."""


# The levels of an entry: its own keys, those of its table, and the defaults.


def find_nearest(levels: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The keys of a policy that hold for an entry, and for each the number of its level. The nearest level comes first."""
    nearest: dict[str, int] = {}
    for number, level in enumerate(levels):
        decided = {*nearest, *(key for group in KEY_GROUPS if nearest.keys() & set(group) for key in group)}
        nearest |= {key: number for key in level if key in PolicyKeys.model_fields and key not in decided}
    return nearest


def merge_levels(levels: Sequence[PolicyKeys]) -> PolicyKeys:
    """The keys that hold for an entry, as one level."""
    values = [{key: value for key, value in level if value is not None} for level in levels]
    # No validator runs: keys of different levels may exclude each other, as those of one level do not.
    return PolicyKeys.model_construct(**{key: values[number][key] for key, number in find_nearest(values).items()})


# Columns that the source gives another name: what is private of one stays so under its other name, before and after.

ColumnNames = Mapping[str, frozenset[str]]
"""By column the other names that it has, or had."""
ColumnSettingsByName = Mapping[str, ColumnSettings]


def merge_names(renamed: Iterable[Mapping[str, str]]) -> ColumnNames:
    """The names of the columns in `renamed_columns` of all levels. A column is the same for every target."""
    aliases: dict[str, frozenset[str]] = {}
    for old, new in (pair for names in renamed for pair in names.items()):
        same = aliases.get(old, frozenset({old})) | aliases.get(new, frozenset({new}))
        aliases |= dict.fromkeys(same, same)
    return {name: same - {name} for name, same in aliases.items()}


def find_names(table: TableSettings, defaults: PolicyKeys) -> ColumnNames:
    """The names of the columns of a table."""
    return merge_names(level.renamed_columns or {} for level in (defaults, table, *table.to))


def inherit_rules(rules: ColumnSettingsByName, names: ColumnNames) -> dict[str, ColumnSettings]:
    """The rules of columns. The rules of private columns are repeated for their other names. A rule for such a name counts,
    but does not make it public."""
    out = dict(rules)
    for name, rule in rules.items():
        for other in names.get(name, ()) if rule.is_private else ():
            own = rules.get(other)
            if own is None or (rule.drop and not own.is_private and own.to_added_column() is None):
                out[other] = rule
            elif not own.is_private and own.to_added_column() is None:
                out[other] = rule.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})
    return out


def find_private_columns(table: TableSettings, defaults: PolicyKeys) -> dict[str, Mask]:
    """The columns of a table whose values nothing that is stored of it holds; one that is dropped holds none."""
    names = find_names(table, defaults)
    rules = inherit_rules(table.columns or {}, names)
    return {
        name: (rule.to_mask() or Mask("nothing")).with_aliases(names.get(name, ()))
        for name, rule in rules.items()
        if rule.is_private
    }
