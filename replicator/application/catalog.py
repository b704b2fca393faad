"""The catalog: schemas of one source's tables, as their change events describe them, and the plan of each lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic

from replicator.domain.change import refuse_frame_names
from replicator.domain.errors import ConfigProblem, Fatal, Retryable
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.policy.policies import plan_for
from replicator.domain.schema_evolution import SchemaChangeKind, SchemaVersion, can_cover, can_hold, classify_type_change
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import UnknownMask
from replicator.ports.components import RulesFor
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Frames
from replicator.ports.frames import F, Lane, RecordSlice

MAX_SCHEMAS = 64
"""Fingerprints kept per table. The schema of an older one is learnt again if it returns."""


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """The columns of a table's frames that a lane applies.

    - `columns`: None: all, as they are.
    - `renamed`: old and new names of renamed columns.
    - `versions`: schema versions that the target has to store, see `ApplyPlan`.
    """

    columns: tuple[Column, ...] | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    versions: tuple[SchemaVersion, ...] = ()


ALL_COLUMNS = TargetColumns()


class UnusableTable(Exception):
    """A table cannot be replicated as it is, because of `cause`. Concerns the lanes of this table only."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Catalog(Generic[F]):
    """Learns the schema of each fingerprint once. Only the thread of its source uses it.

    `keys`: the keys of tables, from earlier runs. A table keeps its key if a record has none (a truncate), and
    gets one if only its first records had none.
    """

    def __init__(
        self, frames: Frames[F], decoder: Decoder, rules_for: RulesFor, keys: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self._keys = keys if keys is not None else {}
        self._frames = frames
        self._decoder = decoder
        self._rules_for = rules_for
        self._learnt: dict[str, dict[str, TableSpec]] = {}
        self._unions: dict[str, list[TableSpec]] = {}
        self._plans: dict[str, tuple[TableSpec, TargetColumns, ApplyPlan]] = {}

    def learn_schema(self, slice_: RecordSlice[F]) -> TableSpec:
        """The table as the fingerprint of these records describes it; learned at the first call and kept.

        UnusableTable if it cannot be replicated. Retryable if a service that describes it does not answer.
        """
        schemas = self._learnt.setdefault(slice_.table, {})
        if slice_.fingerprint in schemas:
            return schemas[slice_.fingerprint]
        try:
            sample = self._frames.sample(slice_.frame)
            learnt = self._decoder.learn(sample, slice_.table, slice_.fingerprint)
            rules = self._rules_for(learnt.name)
            if rules and rules.keys:
                learnt = learnt.with_keys(rules.keys)
            elif not learnt.keys:
                union = self.get_union(learnt.name)
                keys = (union.keys if union else ()) or self._keys.get(learnt.name, ())
                if set(keys) <= set(learnt.column_names):
                    learnt = learnt.with_keys(keys)
            refuse_frame_names(learnt)
            self._unite(learnt)
        except Retryable:
            raise  # The service that describes the schema does not answer.
        except Exception as error:
            raise UnusableTable(error) from error
        schemas = self._learnt[slice_.table]
        schemas[slice_.fingerprint] = learnt
        if len(schemas) > MAX_SCHEMAS:
            schemas.pop(next(iter(schemas)))
        return learnt

    def find_unknown_mask(self, slice_: RecordSlice[F]) -> UnknownMask | None:
        """The masked column that neither these records nor earlier ones of the table have; None if there is none.

        None too if records do not list their columns and none are declared.
        """
        rules = self._rules_for(slice_.table)
        if rules is None or not rules.masks:
            return None
        try:
            self.learn_schema(slice_)
        except UnusableTable as error:
            union = self.get_union(slice_.table)
            if isinstance(error.cause, UnknownMask) and (union is None or error.cause.column not in union.column_names):
                return error.cause
        return None

    def get_union(self, name: str) -> TableSpec | None:
        """The union of the table's schemas, as far as they are compatible with the newest.

        None before its first record.
        """
        return self._unions[name][-1] if name in self._unions else None

    def find_union(self, schema: TableSpec) -> TableSpec:
        """The union that contains a learnt schema: its frames are united as this table."""
        return next(union for union in reversed(self._unions[schema.name]) if can_cover(union, schema))

    def discard_schemas(self, name: str) -> None:
        """Discard all schemas of the table, but not its key. Its next record is treated as its first."""
        self._unions.pop(name, None)
        self._learnt.pop(name, None)

    def plan_lane(self, lane: Lane, table: TableSpec, columns: TargetColumns = ALL_COLUMNS) -> ApplyPlan:
        """The lane's plan for frames of `table`, of which it applies `columns`.

        ConfigProblem, with the line, if its policy does not suit the table.
        """
        planned = self._plans.get(lane.id)
        if planned is None or planned[0] is not table or (planned[1] is not columns and planned[1] != columns):
            planned = (table, columns, plan_lane(lane, table, columns))
            self._plans[lane.id] = planned
        return planned[2]

    def _unite(self, newer: TableSpec) -> None:
        unions = self._unions.setdefault(newer.name, [])
        if unions and newer.keys and not unions[-1].keys:
            unions[-1] = unions[-1].with_keys(newer.keys)
            learnt = self._learnt[newer.name]
            self._learnt[newer.name] = {f: s if s.keys else s.with_keys(newer.keys) for f, s in learnt.items()}
        for i in reversed(range(len(unions))):
            try:
                union = unite_schemas(unions[i], newer)
            except Fatal:
                continue  # No frame can hold both. They stay separate, and each lane decides about the schema change.
            del unions[i]
            unions.append(union)
            return
        unions.append(newer)


def plan_lane(lane: Lane, table: TableSpec, columns: TargetColumns) -> ApplyPlan:
    """The plan of a lane for frames of `table`, see `Catalog.plan_lane`."""
    row_transforms = (
        lane.row_transforms
        if columns.columns is None
        else replace(lane.row_transforms, target_columns=columns.columns, renamed=columns.renamed)
    )
    try:
        plan = plan_for(lane.policy, table, lane.watermark, row_transforms, tracked=lane.tracked, retention=lane.retention)
        return replace(plan, versions=columns.versions)
    except ConfigProblem as error:
        where = f" ({lane.config_line})" if lane.config_line else ""
        own = (
            f" That entry matches every table like {lane.pattern}. Add an entry for this table, `- match: {lane.table}`, "
            "before it."
        )
        raise ConfigProblem(error.sentence, next_step=f"{error.next_step}{where}{own if lane.pattern else ''}") from error


def unite_schemas(older: TableSpec, newer: TableSpec) -> TableSpec:
    """The union of both: columns of `older` first, each with the wider type of the two.

    Fatal if neither type holds all values of the other, or if the key or the sequence has changed.
    """
    if older.keys != newer.keys or older.sequence != newer.sequence:
        raise Fatal(
            f"the key of table {older.name} changed from ({', '.join(older.keys)}) to ({', '.join(newer.keys)})",
            next_step=_describe_reload(older.name),
        )
    types = {c.name: c for c in newer.columns}
    columns = []
    for column in older.columns:
        newer_column = types.get(column.name, column)
        if classify_type_change(column, newer_column) is SchemaChangeKind.WIDENED:
            columns.append(replace(column, type=newer_column.type, source_type=newer_column.source_type))
        elif can_hold(column.type, newer_column.type):
            columns.append(column)
        else:
            raise Fatal(
                f"column {column.name!r} of table {older.name} changed its type from {column.type} to "
                f"{newer_column.type}, and neither type can hold every value of the other",
                next_step=_describe_reload(older.name),
            )
    union = replace(older, columns=tuple(columns)).union(newer)
    return older if union.columns == older.columns else union


def _describe_reload(table: str) -> str:
    return f"Reload the lanes of {table} with `replicator lanes resync LANE` once all its records have the new schema."
