"""The current schema of a lane, and the lane's reaction to records with another one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.domain.event_log import LogCut
from replicator.domain.out_of_range import find_reads
from replicator.domain.policy import CHANGE_POLICIES, VERSION_POLICIES
from replicator.domain.policy.plan import EVENT_ID, ApplyPlan
from replicator.domain.position import Position
from replicator.domain.schema_evolution import (
    SchemaChangeKind,
    SchemaChangeMode,
    SchemaDecision,
    SchemaVersion,
    can_cover,
    decide_drop,
    decide_schema,
    list_changes,
)
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Lane

from .catalog import ALL_COLUMNS, TargetColumns, plan_lane


@dataclass(frozen=True, slots=True)
class SchemaTransition:
    """The change of a lane to another schema.

    - `decision`: the reaction of the lane.
    - `version`: the schema version to store.
    - `is_known`: the lane had this schema before, and repeats its decision of then.
    """

    decision: SchemaDecision
    version: SchemaVersion
    is_known: bool = False

    @property
    def has_cut(self) -> bool:
        """True if records before the change have to be applied to the table as it was."""
        return bool(self.decision.reshaping)


@dataclass(frozen=True, slots=True)
class AlteredColumn:
    """The type of a column before a log cut, and its later types. None: no such column."""

    old_type: pa.DataType | None
    later_types: tuple[pa.DataType | None, ...]

    def is_done(self, kind: pa.DataType | None) -> bool:
        """True if a table whose column has the type `kind` (None: no column) already has a later form.

        A table may store a type as another one.
        """
        return (kind is None) != (self.old_type is None) or (kind != self.old_type and kind in self.later_types)


class LaneSchema:
    """The schema of one lane. Only the thread of its source uses it.

    - `versions`: all versions, stored or to be stored.
    - `current`: the version under which the lane applies records.
    - `is_target_empty`: the target is empty, so that its table may get another key.
    """

    def __init__(self, lane: Lane, versions: Sequence[SchemaVersion] = (), *, is_target_empty: bool = False) -> None:
        self._lane = lane
        self._reads = find_reads(lane.row_transforms)
        versions = [
            replace(v, source=self._apply_text_types(v.source), columns=self._to_text_columns(v.columns)) for v in versions
        ]
        self.versions = {v.number: v for v in versions}
        applied = sorted((v for v in versions if v.state == "applied"), key=lambda v: v.number)
        self.current = applied[-1] if applied else None
        self._new: tuple[SchemaVersion, ...] = ()
        self._is_target_empty = is_target_empty
        self._checked_table: TableSpec | None = None
        self._target_columns: tuple[TableSpec, TargetColumns] | None = None

    @property
    def pending(self) -> SchemaVersion | None:
        """The schema version that waits until an operator accepts it."""
        return next((v for v in self.versions.values() if v.state == "pending"), None)

    def find_transition(self, table: TableSpec, start: Position, now: datetime) -> SchemaTransition | None:
        """The transition of the lane when records arrive under `table`; None if the schema is not new."""
        if table is self._checked_table:
            return None
        transition = self._find_transition(self._complete_columns(self._select_columns(table)), start, now)
        self._checked_table = table if transition is None else None
        return transition

    def _complete_columns(self, table: TableSpec) -> TableSpec:
        """The table with the lane's columns that its partial records lack."""
        if self.current is None or not table.partial:
            return table
        columns = {c.name: c for c in (*self.current.source.columns, *table.columns)}
        return replace(table, columns=tuple(columns.values()), partial=False)

    def _find_transition(self, table: TableSpec, start: Position, now: datetime) -> SchemaTransition | None:
        if self.current is None:
            decision = SchemaDecision((), table.columns)
            return SchemaTransition(decision, self._make_version(table, decision, start, now))
        if self._is_target_empty:
            self._is_target_empty = False
            source = self.current.source
            has_same_key = (source.keys, source.sequence) == (table.keys, table.sequence)
            if not has_same_key and set(table.keys) <= set(source.column_names):
                rekeyed = replace(source, keys=table.keys, sequence=table.sequence)
                self.current = replace(self.current, source=rekeyed)
                decision = SchemaDecision((), self.current.columns)
                return SchemaTransition(decision, self._make_version(rekeyed, decision, start, now))
        if _is_same(self.current.source, table):
            if not self._has_left_out_column(table):
                return None
            earlier = None
        else:
            # The last version with this schema that records from `start` on may have: a table that was changed back has
            # several. A version that was accepted after waiting is the last.
            several = [v for v in self._list_passed() if _is_same(v.source, table)]
            early = [v for v in several if v.state == "applied" or not _has_below(v.position, start)]
            earlier = max(early, key=lambda v: v.number, default=None)
        if earlier is not None and earlier.number < self.current.number:
            if not _is_earlier(earlier.position, self.current.position, start):
                earlier = None  # The table was changed back.
            else:
                return None  # A slow partition, or records that are read again: keep the current schema.
        decision = self._decide(self.current, table, accepted=earlier is not None)
        if not decision.changes:
            self.current = replace(self.current, source=table)
            return None
        version = self._make_version(table, decision, start, now)
        if earlier is not None:
            version = replace(earlier, columns=decision.columns, emptied=version.emptied, reshaping=version.reshaping)
        return SchemaTransition(decision, version, earlier is not None)

    def _decide(self, current: SchemaVersion, table: TableSpec, *, accepted: bool) -> SchemaDecision:
        """The reaction of the lane.

        A column that is added again is not emptied if the table alternates between two earlier schemas. That is
        the pattern of a restarted connector, which sends records from before a change again.
        """
        policy, rules = self._lane.policy, self._lane.schema_rules
        decision = decide_schema(current.columns, current.source, table, rules, policy=policy, is_accepted=accepted)
        before = [v.source for v in self._list_passed() if v.number < current.number]
        if decision.reshaping.emptied and all(any(_is_same(b, spec) for b in before) for spec in (table, current.source)):
            return replace(decision, reshaping=replace(decision.reshaping, emptied=()))
        return decision

    def find_drop_transition(self, at: Position, now: datetime) -> SchemaTransition | None:
        """The transition of the lane when the record at `at` drops its table.

        None if the lane has passed it before, or has no records of the table.
        """
        if self.current is None:
            return None
        dropped = next((v for v in self.versions.values() if v.dropped and v.position == at), None)
        if dropped is not None and dropped.state == "applied":
            return None
        accepted = dropped is not None and dropped.state == "accepted"
        decision = decide_drop(self.current.columns, self._lane.schema_rules, accepted=accepted)
        version = self._make_version(self.current.source, decision, at, now)
        number = dropped.number if dropped is not None and accepted else version.number
        return SchemaTransition(decision, replace(version, number=number, dropped=True), accepted)

    @property
    def has_stored_versions(self) -> bool:
        """True if the sink has stored all versions except drops, which do not change its table."""
        return all(version.dropped for version in self._new)

    def apply_transition(self, transition: SchemaTransition) -> None:
        """Continue under the new schema."""
        version = replace(transition.version, state="applied")
        previous = self.versions.get(version.number)
        self.versions[version.number] = self.current = version
        if previous is None or previous.state != "applied":
            self._new = (*self._new, version)
        self._target_columns = None

    def select_columns(self, table: TableSpec) -> TargetColumns:
        """The columns of `table` that the lane applies now."""
        if self.current is None:
            return ALL_COLUMNS
        if self._target_columns is None or self._target_columns[0] is not table:
            self._target_columns = (table, self._make_target_columns(table, self.current.columns))
        return self._target_columns[1]

    def find_emptied_columns(self, start: Position) -> Sequence[tuple[Position, frozenset[str]]]:
        """For records from `start` on that are read again: positions where columns were replaced, and their names.

        Records below such a position have old values in these columns.
        """
        behind = [v for v in self.versions.values() if v.state == "applied" and v.emptied and _has_below(v.position, start)]
        names = [frozenset(name for v in behind[i:] for name in v.emptied) for i in range(len(behind))]
        return [(v.position, columns) for v, columns in zip(behind, names, strict=True)]

    def select_columns_without(self, table: TableSpec, names: frozenset[str]) -> TargetColumns:
        """The columns of `table` that the lane applies, without `names`, whose values are of older columns."""
        columns = self.current.columns if self.current is not None else table.columns
        lost = names - {c.name for c in columns}
        left_out = names | {new for old, new in self._lane.schema_rules.renames if old in lost}  # Renamed since then.
        return self._make_target_columns(table, tuple(c for c in columns if c.name not in left_out))

    def _make_target_columns(self, table: TableSpec, columns: tuple[Column, ...]) -> TargetColumns:
        names = {c.name for c in columns}
        renamed = tuple(
            (old, new)
            for old, new in self._lane.schema_rules.renames
            if new in names and old not in names and old in table.column_names
        )
        types = {c.name: (c.type, c.text_kind) for c in columns}
        unselected_types = {c.name: (c.type, c.text_kind) for c in self._select_columns(table).columns}
        return TargetColumns(None if types == unselected_types else columns, renamed, self._new)

    def _has_left_out_column(self, table: TableSpec) -> bool:
        """True if the lane has left out a column that it would add under today's rules."""
        names = {c.name for c in self.current.columns} if self.current else set()
        evolves = self._lane.schema_rules.get_mode(SchemaChangeKind.ADDED) in (
            SchemaChangeMode.EVOLVE,
            SchemaChangeMode.TRY_EVOLVE,
        )
        return evolves and any(name not in names for name in table.column_names)

    def _make_version(self, table: TableSpec, decision: SchemaDecision, start: Position, now: datetime) -> SchemaVersion:
        passed = [v.number for v in self._list_passed()]
        descriptions = tuple(map(str, decision.changes))
        waits = "pending" if decision.stops else "applied"
        emptied = decision.reshaping.emptied
        reshaping = replace(
            decision.reshaping,
            emptied=tuple(filter(None, map(self._lane.row_transforms.column_transforms.get_new_name, emptied))),
        )
        number = max(passed, default=0) + 1
        new_version = SchemaVersion(number, table, decision.columns, start, now, descriptions, waits)  # type: ignore[arg-type]
        return replace(new_version, emptied=emptied, reshaping=reshaping)

    def _list_passed(self) -> list[SchemaVersion]:
        """The versions that need no further decision."""
        return [v for v in self.versions.values() if v.state != "pending"]

    def _select_columns(self, table: TableSpec) -> TableSpec:
        """The table without the columns that the lane leaves out."""
        selection, table = self._lane.row_transforms.columns, self._apply_text_types(table)
        if selection is None:
            return table
        return replace(table, columns=tuple(c for c in table.columns if c.name in selection or c.name in table.keys))

    def _apply_text_types(self, table: TableSpec) -> TableSpec:
        return replace(table, columns=self._to_text_columns(table.columns))

    def _to_text_columns(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """Columns with dates and times that the lane stores as text only are text: other lanes decide how records
        are read."""
        return tuple(
            Column(c.name, pa.string(), c.nullable) if pa.types.is_temporal(c.type) and self._reads.has_text(c.name) else c
            for c in columns
        )


SEQUENCE_COLUMN = re.compile(r"_cdc_seq_\d+")
"""A column with an element of the sequence of a row (`domain.policy.plan.cdc_sequence_columns`)."""


def list_identity_columns(lane: Lane, source_keys: Sequence[str], names: Iterable[str]) -> list[str]:
    """The columns that identify a row of the lane's target, which has the columns `names`. `source_keys`: the key of the
    source's table. Versions have their sequence, because several of a key may start at the same time."""
    if lane.policy in CHANGE_POLICIES:
        return [EVENT_ID]
    keys = [lane.row_transforms.column_transforms.get_new_name(name) for name in lane.keys or source_keys]
    sequence = filter(SEQUENCE_COLUMN.fullmatch, names) if lane.policy in VERSION_POLICIES else ()
    return [*keys, *sequence]


def find_plan(lane: Lane, versions: Sequence[SchemaVersion]) -> ApplyPlan | None:
    """The plan of a lane with these stored `versions`, under its current schema; None without one."""
    schema = LaneSchema(lane, versions)
    if schema.current is None:
        return None
    return plan_lane(lane, schema.current.source, schema.select_columns(schema.current.source))


def refuse_other_rule(lane: Lane, rule: str, now: str) -> None:
    """Raise ConfigProblem if the target's rows were written under another policy or key: they must not mix."""
    if rule not in ("", now):
        raise ConfigProblem(
            f"Lane {lane.id} contains rows written under {rule!r}, but the configuration is now {now!r}.",
            next_step=f"`replicator lanes resync {lane.id}` loads it again under the new rule. Or give it another name with "
            f"`into` ({lane.config_line}).",
        )


def refuse_changed_rule(lane: Lane, rule: str, versions: Sequence[SchemaVersion], keys: tuple[str, ...]) -> None:
    """`refuse_other_rule` before any record arrives, with the lane's last schema. `keys`: as configured."""
    schema = LaneSchema(lane, versions)
    if not rule or schema.current is None:
        return
    source = schema.current.source
    try:
        plan = plan_lane(lane, source.with_keys(keys) if keys else source, schema.select_columns(source))
    except ReplicatorError:
        return  # The next records may fit; if not, the error is raised for them.
    refuse_other_rule(lane, rule, plan.rule)


def find_altered_columns(cut: LogCut, lane: Lane, versions: Sequence[SchemaVersion]) -> Mapping[str, AlteredColumn]:
    """The columns of the lane's target that schemas after the log cut added, removed or gave another type.

    Today's rules apply. The table may have them without a record of these schemas: one batch may have both, and
    records may be read again.
    """
    applied = [v for v in versions if v.state == "applied"]
    early = [v for v in applied if cut.has_before(v.position)] or applied[:1]
    transform_columns = lane.row_transforms.column_transforms.transform_columns
    later = [v for v in applied if v not in early]
    schemas = [{c.name: c.type for c in transform_columns(v.columns)} for v in (*early[-1:], *later)]
    altered: dict[str, AlteredColumn] = {}
    for name in {name for columns in schemas for name in columns}:
        old_type, *later_types = (columns.get(name) for columns in schemas)
        new_types = tuple(one for one in later_types if one != old_type)
        if new_types:
            altered[name] = AlteredColumn(old_type, new_types)
    return altered


def _is_same(one: TableSpec, other: TableSpec) -> bool:
    return can_cover(one, other) and can_cover(other, one) and not list_changes(one, other)


def _is_earlier(earlier: Position, current: Position, start: Position) -> bool:
    """True if records of an earlier schema, from `start` on, may have been sent before the current one.

    A table in several partitions gives no answer: each partition gets to a schema change in its own time.
    """
    return len({*earlier, *current, *start}) > 1 or any(at <= current.get(partition, at) for partition, at in start.items())


def _has_below(position: Position, start: Position) -> bool:
    return any(start[partition] < at for partition, at in position.items() if partition in start)


def describe_stop(lane: Lane, transition: SchemaTransition) -> tuple[str, str]:
    """The reason why the lane stops, and the next step."""
    stops, line = transition.decision.stops, f" ({lane.config_line})" if lane.config_line else ""
    sentence = f"The schema of table {lane.table} changed: {'; '.join(map(str, stops))}."
    kinds = {change.kind for change in stops}
    if transition.decision.is_final:  # The stored rows do not fit the new key or type.
        keep = (
            f"Keep the existing type with `schema_changes: {{type_changed: try_evolve}}`{line}, and start again: rows that "
            "do not fit are rejected. Or load"
            if SchemaChangeKind.TYPE_CHANGED in kinds and SchemaChangeKind.KEY_CHANGED not in kinds
            else "Load"
        )
        return sentence, (
            f"{keep} the table again without its older records. The new schema begins at "
            f"{transition.version.position.to_option()}. Make source {lane.source} begin there or later (`start_from`, or "
            f"its retention), `replicator drop {lane.id}`, and start again. "
            "`replicator backfill` loads the rows that do not change."
        )
    accept = f"`replicator lanes resume {lane.id} --accept-schema {transition.version.number}`"
    if transition.decision.waits:
        return sentence, f"{accept} continues the lane under it. It waits because `schema_changes` is quarantine{line}."
    modes = ", ".join(f"{kind}: evolve" for kind in sorted(kind.value for kind in kinds))
    return sentence, f"Allow it with `schema_changes: {{{modes}}}`{line} and start again, or for this once with {accept}."
