"""Settings of tables: which source tables, where to, and how."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from replicator.domain.policy.policy_names import Policy

from .columns import ColumnRules
from .conditions import parse_condition
from .expressions import InvalidExpressionText
from .fields import DURATION, Duration, FromZero, Glob, Into, Strict, make_value_error, to_timedelta

Deletes = Literal["hard", "soft", "ignore"]
PartialUpdates = Literal["ordered", "by_column"]
Tombstones = Literal["delete", "ignore"]
OutOfRangeRule = Literal["reject", "null", "clamp"]
OutOfRangeRules = OutOfRangeRule | dict[str, OutOfRangeRule]
SchemaChanges = Literal["evolve", "try_evolve", "ignore", "fail", "quarantine"]
DroppedColumns = Literal["keep", "remove"]
POLICY_OF_SCD_TYPE: dict[int | None, Policy] = {1: "scd1", 2: "scd2"}
VACUUM = ("vacuum_every", "vacuum_retain")
TABLE_OPTIONS = ("partition_by", "cluster_by", "change_data_feed", "deletion_vectors", "compact_every", *VACUUM)
"""Keys that a sink interprets, not the core: options of Delta tables."""

ROW_TRANSFORM_KEYS = (
    *("sequence_by", "apply_as_deletes", "apply_as_truncates", "column_list", "except_column_list", "keys"),
    *("ignore_null_updates_column_list", "ignore_null_updates_except_column_list"),
    *("deletes", "ignore_null_updates", "partial_updates", "tombstone_retention", "where"),
)
"""Keys that say what becomes of changes before their policy sees them, and the one that they must agree with."""

EXCLUSIVE_KEYS = (
    ("column_list", "except_column_list"),
    ("track_history_column_list", "track_history_except_column_list"),
    ("ignore_null_updates_column_list", "ignore_null_updates_except_column_list"),
)


def _to_number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _refuse_repeated(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        raise make_value_error("contradiction", "names a column twice")
    return names


def _refuse_bookkeeping(names: list[str]) -> list[str]:
    if any(name.startswith("_cdc_") or name == "_event_id" for name in names):
        raise make_value_error("value", "names a column of replicator's own; name columns of the source")
    return names


def _to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _check_condition(text: str) -> str:
    try:
        parse_condition(text)
    except InvalidExpressionText as why:
        raise make_value_error("condition", str(why)) from None
    return text


Columns = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
Layout = Annotated[Columns, AfterValidator(_refuse_repeated), AfterValidator(_refuse_bookkeeping)]
Order = Annotated[Layout, Field(json_schema_extra={"type": ["array", "string"]}), BeforeValidator(_to_list)]
"""Columns, or the name of one."""


def _refuse_zero(duration: str) -> str:
    if not to_timedelta(duration):
        raise make_value_error("duration", "must be longer than none")
    return duration


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

Retain = Annotated[Duration, AfterValidator(_refuse_zero)]
"""How long a scheduled vacuum leaves files that the newest version does not need."""

Condition = Annotated[str, AfterValidator(_check_condition)]


class SchemaChangeModes(Strict):
    """What happens at each kind of change of the source's schema."""

    added: SchemaChanges | None = None
    """A column was added."""
    dropped: SchemaChanges | None = None
    """A column was dropped, or renamed without `renamed_columns`, in which case another one was added."""
    readded: SchemaChanges | None = None
    """A column that was dropped before was added again. Under evolve its old values are removed, under ignore they stay."""
    renamed: SchemaChanges | None = None
    """A column has the new name that `renamed_columns` declares."""
    widened: SchemaChanges | None = None
    """A column has a type that holds every value of the old one."""
    narrowed: SchemaChanges | None = None
    """A column has a type all of whose values the old one holds."""
    type_changed: SchemaChanges | None = None
    """A column has another type, and neither holds every value of the other."""
    key_changed: SchemaChanges | None = None
    """The table has another key; whatever is said, the lane stops."""
    table_dropped: SchemaChanges | None = None
    """The table was dropped, where its own stream says so (canal_json, maxwell_json). Its rows stay in the target."""
    others: SchemaChanges | None = None
    """The kinds that are not named here; evolve by default."""


OnReject = Literal["continue", "hold_key", "stop_lane"]


class PolicyKeys(Strict):
    """What can be said for one `to` entry, for its table, or in `defaults`; the nearest one counts."""

    policy: Policy | None = None
    """scd1: current rows. append: every change as a row. scd2: every version."""
    stored_as_scd_type: Annotated[Literal[1, 2], BeforeValidator(_to_number)] | None = None
    """1 means policy scd1, 2 means scd2."""
    keys: Columns | None = None
    """The key columns; by default they are learnt from the change events."""
    deletes: Deletes | None = None
    """hard: a delete removes the target's row. soft: under scd1 it stays, marked in _cdc_deleted and _cdc_deleted_at.
    ignore: deletes and truncates change nothing in the target, but a change of a row's key takes the old row away."""
    tombstones: Tombstones | None = None
    """What a record without a value means: nothing (ignore, the default), or a delete of its key, which compacted topics
    need; the table is then ordered by offset. See docs/how-to/read-compacted-topics.md."""
    out_of_range: OutOfRangeRules | None = None
    """What becomes of dates and times that no target can hold: infinity, years before 1 and after 9999, times from 24:00 on.
    reject (the default): the change is. "null": the value is NULL. clamp: it is the nearest one that there is. Or a mapping
    from columns to these. Key columns are always rejected. With all formats but debezium_outbox."""
    schema_changes: SchemaChanges | SchemaChangeModes | None = None
    """What happens when the source's columns change. evolve: the target follows. try_evolve: it follows where nothing is
    lost, and otherwise stays as it is; rows that do not fit are rejected. ignore: it stays as it is. fail: the lane stops.
    quarantine: it waits for `replicator lanes resume LANE --accept-schema N`. Or a mapping from kinds of changes to
    these."""
    dropped_columns: DroppedColumns | None = None
    """What becomes, under evolve, of a column that the source has dropped. keep: it stays, and is NULL in rows from then on.
    remove: it goes."""
    renamed_columns: dict[str, str] | None = None
    """Columns that the source has renamed, or will: old name and new name. Otherwise a rename is a column dropped and
    another one added."""
    into: Into | None = None
    """The target's name; by default the source table's own name without its schema. Where 'match' is a regular expression,
    {1} and {name} are what its groups hold."""
    sequence_by: Order | None = None
    """The columns that order the changes of a row, the first first. Changes that agree in all of them come in the
    order of the source's log, which alone counts by default. A change in which one of them is NULL, or is missing, is
    rejected as SEQUENCE.
    """
    apply_as_deletes: Condition | None = None
    """A condition on the source's columns, such as operation = 'DELETE': rows for which it holds are deletes."""
    apply_as_truncates: Condition | None = None
    """scd1: a condition on the source's columns: rows for which it holds clear the target of all that is older."""
    ignore_null_updates: bool | None = None
    """scd1: true leaves what the target's row holds where a change says NULL; where there is no row, NULL is written."""
    ignore_null_updates_column_list: Layout | None = None
    """The same for these columns only."""
    ignore_null_updates_except_column_list: Layout | None = None
    """The same for all columns but these."""
    partial_updates: PartialUpdates | None = None
    """scd1: what a change is compared with that sends a part of the columns only. ordered: with the row, as of a source that
    keeps the changes of a row in order. by_column: each column with the last change that sent it, in whatever order they
    come."""
    column_list: Layout | None = None
    """The columns that the target has, those of the key among them; by default all."""
    except_column_list: Layout | None = None
    """The columns that the target does without."""
    track_history_column_list: Columns | None = None
    """scd2: the columns whose change begins a new version; a change of others is written into the version that is open."""
    track_history_except_column_list: Columns | None = None
    """scd2: the columns whose change alone begins no version."""
    watermark: Duration | None = None
    """append: how far an event time may lie behind the newest one of its partition; a change behind that is rejected as
    LATE. By default no change is late."""
    tombstone_retention: Retention | None = None
    """scd1: how long deletes are remembered, so that an older change cannot bring a row back; 7 days by default, off is for
    ever. A change that is as old as what is forgotten, and whose row is not there, is rejected as LATE."""
    partition_by: Layout | None = None
    """Delta: the columns by which the table is partitioned when it is made. Text, whole numbers, booleans or dates."""
    cluster_by: Layout | None = None
    """Delta on the engine spark: up to four columns by which rows are clustered from then on. Text, whole numbers, dates,
    timestamps or decimals. Only Spark writes such a table."""
    change_data_feed: bool | None = None
    """Delta: true keeps a change data feed, from the moment it is said. Said later, false leaves one that is there."""
    deletion_vectors: bool | None = None
    """Delta on the engine spark: true marks rows as deleted instead of rewriting their files."""
    compact_every: FromZero | None = None
    """Delta: small files are compacted after every so many commits; 0 is never. By default what the sink says."""
    vacuum_every: Duration | None = None
    """Delta: files that no version needs any more are deleted so often, after a commit; 0 days is never. By default what the
    sink says."""
    vacuum_retain: Retain | None = None
    """Delta: how long a vacuum leaves files that the newest version does not need, in whole hours, rounded up. By default
    what the sink says."""
    columns: ColumnRules | None = None
    """What becomes of single columns, by their names: drop, rename, cast, mask; and columns beside the source's own, some of
    which are computed. A mask
    or a drop of a table holds for all that is stored of it, event logs and dead letters too; one of an entry for its target
    alone."""
    where: Condition | None = None
    """A condition on the source's columns: the target has the rows for which it holds. A row for which it ceases to hold
    leaves the target; under append, changes of which it does not hold are left out."""

    def get_policy(self) -> Policy | None:
        """The policy said here, by either of its two names; None when nothing is said."""
        return self.policy or POLICY_OF_SCD_TYPE.get(self.stored_as_scd_type)

    @model_validator(mode="after")
    def _check_consistent(self) -> PolicyKeys:
        by_type = POLICY_OF_SCD_TYPE.get(self.stored_as_scd_type)
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
    """One entry of a table's `to`: a lane into a sink."""

    sink: str
    """The name of a sink; or event_store, for events of an outbox."""


class TableSettings(PolicyKeys):
    """The tables that `match` names, and where their changes go."""

    match: Glob
    """The table's name on the database side, with its schema; or a glob; or a regular expression that starts with ^. The
    most specific match wins, whole."""
    source: str
    """The name of a source."""
    declared: dict[str, str] | None = Field(None, alias="schema")
    """Columns and their Arrow types, where the source carries no types."""
    to: list[EntrySettings]
    """The lanes: one entry per target."""
    on_reject: OnReject | None = None
    """What becomes of the table when a record of it cannot be used; by default what the top level says."""
