"""Lanes as the config says them: one table, one sink, one policy, everything resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from replicator.domain.events import EVENT_STORE
from replicator.domain.patterns import ColumnSelection, expand_template, is_regex, matches
from replicator.domain.policy import CHANGE_POLICIES, CURRENT_ROW_POLICIES, VERSION_POLICIES, Policy
from replicator.domain.schema_evolution import SchemaChangeKind, SchemaChangeMode, SchemaRules
from replicator.domain.table import describe_target_problem, get_unqualified_name
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.options import IS_INSTANCE, NO_RETENTION, VACUUM, Strict, to_timedelta

from .adapter_models import get_sink_model
from .document import Path
from .expressions import parse_condition
from .tables import (
    FIELD,
    TABLE_OPTIONS,
    ColumnSettings,
    Deletes,
    EntrySettings,
    OutOfRangeRules,
    PolicyKeys,
    SchemaChangeModes,
    TableSettings,
    Tombstones,
    VerifySettings,
    build_column_transforms,
    find_names,
    find_private_columns,
    inherit_rules,
)

DEFAULT_RETENTION = "7 days"
"""How long deletes are remembered."""

CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")

V = TypeVar("V")
SettingsLevels = tuple[EntrySettings, TableSettings, PolicyKeys]
"""The settings that decide about a lane, in order of precedence."""


class LaneSettings(Strict):
    """One lane of one source table, resolved from its entry, its table and the defaults, in this order of precedence."""

    table: str
    """The source table's name on the database side."""
    source: str
    """The name of its source."""
    sink: str
    """The name of its sink."""
    kind: str
    """The sink's kind."""
    into: str
    """The target's name inside the sink."""
    refused: str
    """Why `into`, made from the table's name, cannot be a target's name. Completes a sentence; empty if it can."""
    policy: Policy
    keys: tuple[str, ...] | None
    """The key columns. None if they are learnt from the change events."""
    watermark: timedelta | None
    """The grace after which a change is late. None: no change is late, as under all policies but append."""
    retention: timedelta | None
    """How long deletes are remembered. None: for ever, as under all policies but scd1, and with sequences per column."""
    row_transforms: Annotated[RowTransforms, IS_INSTANCE]
    """The transforms of the table's changes before the policy."""
    tracked: Annotated[ColumnSelection, IS_INSTANCE] | None
    """The columns whose change begins a version. None: all, as under all policies but scd2."""
    deletes: Deletes
    tombstones: Tombstones | None
    """None: ignore."""
    out_of_range: OutOfRangeRules | None
    """None: reject."""
    schema_rules: Annotated[SchemaRules, IS_INSTANCE]
    """The reactions to changes of the source's schema."""
    declared: Mapping[str, str] | None
    """Columns and Arrow types that the config declares."""
    options: Mapping[str, Any]
    """Options of the target itself (`tables.TABLE_OPTIONS`), those that are set. Empty if the sink has none."""
    verify: VerifySettings | None
    """When its target is compared. None: never."""
    at: Path
    """The path of its `to` entry in the config: `Loaded.describe_origin(*lane.at)` gives file and line."""

    @property
    def is_mirror(self) -> bool:
        """True if its target is a table that can be rebuilt from the records. The event store is not."""
        return self.kind != EVENT_STORE


def resolve_lane(
    name: str, levels: SettingsLevels, kind: str, at: Path, *, of_events: bool = False, has_tombstones: bool = False
) -> LaneSettings:
    """The lane of the source table `name` through the entry, in the table, with the defaults of `levels`. The entry stands
    at the path `at`, and its sink is of `kind`. `of_events`: the table is one of an outbox's events. `has_tombstones`: see
    `SourceOptions.has_tombstones`."""
    entry, table, _ = levels
    keys = find_first(*(level.keys for level in levels))
    policy: Policy = find_first(*(level.get_policy() for level in levels)) or "scd1"
    # Events are taken whole, and one after the other: what the table or the defaults say is for its other targets.
    stored = kind == EVENT_STORE
    policy = "append" if stored else policy
    grace = find_first(*(level.watermark for level in levels)) if policy in CHANGE_POLICIES and not stored else None
    deletes: Deletes = find_first(*(level.deletes for level in levels)) or "hard"
    retention = find_first(*(level.tombstone_retention for level in levels)) or DEFAULT_RETENTION
    forgets_deletes = policy in CURRENT_ROW_POLICIES and not _has_column_versions(levels) and retention != NO_RETENTION
    # The first level that sets it decides alone.
    verify = find_first(*(level.verify for level in levels))
    is_verified = verify is not None and verify.every != NO_RETENTION and not stored
    if stored:
        where = find_first(*(level.where for level in levels))
        row_transforms = RowTransforms(where=None if where is None else parse_condition(where), rows_leave=where is None)
    else:
        row_transforms = _resolve_row_transforms(levels, policy, deletes, of_events=of_events)
    tracked = find_first(*(_select(one.track_history_column_list, one.track_history_except_column_list) for one in levels))
    into, refused = _resolve_target(name, table.match, find_first(*(level.into for level in levels)))
    return LaneSettings(
        table=name,
        source=table.source,
        sink=entry.sink,
        kind=kind,
        into=into,
        refused=refused,
        policy=policy,
        keys=None if keys is None else tuple(keys),
        watermark=None if grace is None else to_timedelta(grace),
        retention=to_timedelta(retention) if forgets_deletes else None,
        row_transforms=row_transforms,
        tracked=tracked if policy in VERSION_POLICIES else None,
        deletes=deletes,
        tombstones=find_first(*(level.tombstones for level in levels)) or ("delete" if has_tombstones else None),
        out_of_range=find_first(*(level.out_of_range for level in levels)),
        schema_rules=_resolve_schema_rules(levels),
        declared=table.declared,
        options=_resolve_options(levels) if get_sink_model(kind).has_table_options else {},
        verify=verify if is_verified else None,
        at=at,
    )


def _resolve_target(name: str, match: str, into: str | None) -> tuple[str, str]:
    """The name of the target, and why it cannot be one. Groups in braces are replaced from the name that `match` matches.
    They stay if `name` is the pattern itself."""
    if into is None or not is_regex(match) or not matches(match, name):
        return into or get_unqualified_name(name), ""
    target = expand_template(into, match, name)
    return target, describe_target_problem(target)


def _resolve_schema_rules(levels: SettingsLevels) -> SchemaRules:
    """The first level that sets a key decides alone."""
    setting: Any = find_first(*(level.schema_changes for level in levels)) or "evolve"
    modes = setting if isinstance(setting, SchemaChangeModes) else SchemaChangeModes(others=setting)
    of_kinds = {
        kind: SchemaChangeMode(mode) for kind in SchemaChangeKind if (mode := getattr(modes, kind.value)) is not None
    }
    return SchemaRules(
        modes=of_kinds,
        others=SchemaChangeMode(modes.others or "evolve"),
        removes=find_first(*(level.dropped_columns for level in levels)) == "remove",
        renames=tuple((find_first(*(level.renamed_columns for level in levels)) or {}).items()),
    )


def _has_column_versions(levels: SettingsLevels) -> bool:
    return find_first(*(level.partial_updates for level in levels)) == "by_column"


def _resolve_row_transforms(levels: SettingsLevels, policy: Policy, deleted: Deletes, *, of_events: bool) -> RowTransforms:
    _, table, defaults = levels
    # Fields of payloads are not columns.
    rules = {n: rule for n, rule in list_column_settings(levels).items() if not (of_events and n.startswith(FIELD))}
    names = find_names(table, defaults)
    # A private column that was renamed has a rule under both names, of which records have one.
    may_lack = {name for name, rule in rules.items() if rule.is_private and name in names}
    private = frozenset(find_private_columns(table, defaults))
    deletes, truncates, where = (find_first(*(getattr(level, key) for level in levels)) for key in CONDITIONS)
    return RowTransforms(
        sequence_by=tuple(find_first(*(level.sequence_by for level in levels)) or ()),
        deletes=None if deletes is None else parse_condition(deletes),
        truncates=None if truncates is None else parse_condition(truncates),
        columns=find_first(*(_select(level.column_list, level.except_column_list) for level in levels)),
        without_deletes=deleted == "ignore" and policy not in CHANGE_POLICIES,
        ignore_null=_resolve_ignore_null(levels) if policy in CURRENT_ROW_POLICIES else None,
        soft_deletes=deleted == "soft" and policy in CURRENT_ROW_POLICIES,
        has_column_versions=_has_column_versions(levels) and policy in CURRENT_ROW_POLICIES,
        where=None if where is None else parse_condition(where),
        rows_leave=where is None or policy not in CHANGE_POLICIES,
        column_transforms=build_column_transforms(rules, private, may_lack.union(table.declared or ())),
    )


def list_column_settings(levels: SettingsLevels) -> dict[str, ColumnSettings]:
    """The settings of single columns. The entry wins over its table."""
    entry, table, defaults = levels
    names = find_names(table, defaults)
    return inherit_rules({**inherit_rules(table.columns or {}, names), **(entry.columns or {})}, names)


def _select(names: Sequence[str] | None, excluded: Sequence[str] | None) -> ColumnSelection | None:
    """The columns of the list that one level sets. A level has at most one of the two."""
    if names is not None:
        return ColumnSelection(tuple(names))
    return None if excluded is None else ColumnSelection(tuple(excluded), excluded=True)


def _resolve_ignore_null(levels: SettingsLevels) -> ColumnSelection | None:
    """The columns in which NULL changes nothing. The first level that sets them decides alone."""
    for level in levels:
        named = _select(level.ignore_null_updates_column_list, level.ignore_null_updates_except_column_list)
        if named is not None:
            return named
        if level.ignore_null_updates is not None:
            return ColumnSelection((), excluded=True) if level.ignore_null_updates else None
    return None


def _resolve_options(levels: SettingsLevels) -> dict[str, Any]:
    options = {name: find_first(*(getattr(level, name) for level in levels)) for name in TABLE_OPTIONS}
    seconds = {name: to_timedelta(text).total_seconds() for name in VACUUM if (text := options.pop(name)) is not None}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in options.items() if v is not None} | seconds


def find_first(*values: V | None) -> V | None:
    """The first that is not None."""
    return next((value for value in values if value is not None), None)
