"""Lanes as the config says them: one table, one sink, one policy, everything resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

from replicator.domain.events import EVENT_STORE
from replicator.domain.expr import Expr
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
    merge_levels,
)

DEFAULT_RETENTION = "7 days"
"""How long deletes are remembered."""

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
    keys = merge_levels(levels)
    # Events are taken whole, and one after the other: what the table or the defaults say is for its other targets.
    stored = kind == EVENT_STORE
    policy: Policy = "append" if stored else keys.get_policy() or "scd1"
    grace = keys.watermark if policy in CHANGE_POLICIES and not stored else None
    retention = keys.tombstone_retention or DEFAULT_RETENTION
    forgets_deletes = policy in CURRENT_ROW_POLICIES and keys.partial_updates != "by_column" and retention != NO_RETENTION
    is_verified = keys.verify is not None and keys.verify.every != NO_RETENTION and not stored
    if stored:
        row_transforms = RowTransforms(where=_parse(keys.where), rows_leave=keys.where is None)
    else:
        row_transforms = _resolve_row_transforms(levels, keys, policy, of_events=of_events)
    tracked = _select(keys.track_history_column_list, keys.track_history_except_column_list)
    into, refused = _resolve_target(name, table.match, keys.into)
    return LaneSettings(
        table=name,
        source=table.source,
        sink=entry.sink,
        kind=kind,
        into=into,
        refused=refused,
        policy=policy,
        keys=None if keys.keys is None else tuple(keys.keys),
        watermark=None if grace is None else to_timedelta(grace),
        retention=to_timedelta(retention) if forgets_deletes else None,
        row_transforms=row_transforms,
        tracked=tracked if policy in VERSION_POLICIES else None,
        deletes=keys.deletes or "hard",
        tombstones=keys.tombstones or ("delete" if has_tombstones else None),
        out_of_range=keys.out_of_range,
        schema_rules=_resolve_schema_rules(keys),
        declared=table.declared,
        options=_resolve_options(keys) if get_sink_model(kind).has_table_options else {},
        verify=keys.verify if is_verified else None,
        at=at,
    )


def _resolve_target(name: str, match: str, into: str | None) -> tuple[str, str]:
    """The name of the target, and why it cannot be one. Groups in braces are replaced from the name that `match` matches.
    They stay if `name` is the pattern itself."""
    if into is None or not is_regex(match) or not matches(match, name):
        return into or get_unqualified_name(name), ""
    target = expand_template(into, match, name)
    return target, describe_target_problem(target)


def _resolve_schema_rules(keys: PolicyKeys) -> SchemaRules:
    setting: Any = keys.schema_changes or "evolve"
    modes = setting if isinstance(setting, SchemaChangeModes) else SchemaChangeModes(others=setting)
    of_kinds = {
        kind: SchemaChangeMode(mode) for kind in SchemaChangeKind if (mode := getattr(modes, kind.value)) is not None
    }
    return SchemaRules(
        modes=of_kinds,
        others=SchemaChangeMode(modes.others or "evolve"),
        removes=keys.dropped_columns == "remove",
        renames=tuple((keys.renamed_columns or {}).items()),
    )


def _resolve_row_transforms(levels: SettingsLevels, keys: PolicyKeys, policy: Policy, *, of_events: bool) -> RowTransforms:
    _, table, defaults = levels
    # Fields of payloads are not columns.
    rules = {n: rule for n, rule in list_column_settings(levels).items() if not (of_events and n.startswith(FIELD))}
    names = find_names(table, defaults)
    # A private column that was renamed has a rule under both names, of which records have one.
    may_lack = {name for name, rule in rules.items() if rule.is_private and name in names}
    private = frozenset(find_private_columns(table, defaults))
    ignore_null = _select(keys.ignore_null_updates_column_list, keys.ignore_null_updates_except_column_list)
    if keys.ignore_null_updates and ignore_null is None:
        ignore_null = ColumnSelection((), excluded=True)
    has_current_rows, has_changes = policy in CURRENT_ROW_POLICIES, policy in CHANGE_POLICIES
    return RowTransforms(
        sequence_by=tuple(keys.sequence_by or ()),
        deletes=_parse(keys.apply_as_deletes),
        truncates=_parse(keys.apply_as_truncates),
        columns=_select(keys.column_list, keys.except_column_list),
        without_deletes=keys.deletes == "ignore" and not has_changes,
        ignore_null=ignore_null if has_current_rows else None,
        soft_deletes=keys.deletes == "soft" and has_current_rows,
        has_column_versions=keys.partial_updates == "by_column" and has_current_rows,
        where=_parse(keys.where),
        rows_leave=keys.where is None or not has_changes,
        column_transforms=build_column_transforms(rules, private, may_lack.union(table.declared or ())),
    )


def _parse(condition: str | None) -> Expr | None:
    return None if condition is None else parse_condition(condition)


def list_column_settings(levels: SettingsLevels) -> dict[str, ColumnSettings]:
    """The settings of single columns. The entry wins over its table."""
    entry, table, defaults = levels
    names = find_names(table, defaults)
    return inherit_rules({**inherit_rules(table.columns or {}, names), **(entry.columns or {})}, names)


def _select(names: Sequence[str] | None, excluded: Sequence[str] | None) -> ColumnSelection | None:
    """The columns of the list that is set, of the two that exclude each other."""
    if names is not None:
        return ColumnSelection(tuple(names))
    return None if excluded is None else ColumnSelection(tuple(excluded), excluded=True)


def _resolve_options(keys: PolicyKeys) -> dict[str, Any]:
    options = {name: value for name in TABLE_OPTIONS if (value := getattr(keys, name)) is not None}
    seconds = {name: to_timedelta(options.pop(name)).total_seconds() for name in VACUUM if name in options}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()} | seconds
