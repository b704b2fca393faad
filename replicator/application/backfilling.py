"""Reading a table whole while the stream of its changes goes on: its rows, then deletes of those that it no longer holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from replicator.domain.plan import CDC_DELETED, cdc_sequence_columns, end_sequence_columns, last_sequence_columns
from replicator.domain.position import Position
from replicator.ports.backfill import Backfill, Taken
from replicator.ports.frames import Lane

Left = Callable[[Lane, str], pa.Table | None]
"""The rows of a lane's target for which an SQL condition holds; None where there is no target yet."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a backfill. `deletes_of`: lanes whose targets were searched for rows that the table no longer holds;
    `without`: why others were not, in sentences."""

    table: str
    rows: int
    deleted: int
    resumed: bool
    begun: str
    deletes_of: tuple[str, ...]
    without: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Backfilling:
    """One backfill of one table. `applied` returns once every lane of the table has applied everything up to a position, of
    the stream and of what was written down; `end` says where the stream ends now."""

    backfill: Backfill
    applied: Callable[[Position], None]
    end: Callable[[], Position]
    left: Left
    tell: Tell
    check: Callable[[], None]
    """Raises when a lane of the table does not go on, so that nothing would come of the rest."""

    def run(self, table: str, lanes: Sequence[Lane], *, anew: bool = False) -> Outcome:
        """See the module. May be repeated at any time: it goes on where the last one stopped.

        Rows count as deleted whose last change is older than the snapshot, once everything that came before it was applied:
        had the snapshot held them, they would be newer.
        """
        self.check()
        taken = self.backfill.rows(self._told, anew=anew)
        searched, without = deletable(lanes, taken.keys)
        # What the stream holds now was there before anything that comes after the snapshot.
        self._await(Position({**self.end(), **self.backfill.end()}), "lanes apply the rows")
        deleted = self._delete(searched, taken)
        if deleted:
            self._await(self.backfill.end(), "lanes apply the deletes")
        without += [sentence for lane in searched if (sentence := self._strangers(lane))]
        self.backfill.finish()
        return Outcome(
            table, taken.rows, deleted, taken.resumed, taken.begun, tuple(lane.id for lane in searched), tuple(without)
        )

    def _told(self, sentence: str) -> None:
        """Between two pieces."""
        self.tell(sentence)
        self.check()

    def _strangers(self, lane: Lane) -> str:
        """Says how many rows of the target no record has written: all that the table holds were written by now."""
        (column,) = last_sequence_columns(1) if lane.policy == "scd2" else cdc_sequence_columns(1)
        rows = self.left(lane, f'"{column}" IS NULL')
        if rows is None or not rows.num_rows:
            return ""
        return (
            f"Rows that {lane.id} keeps, although the table does not hold them and no record has written them "
            f"(their {column} is NULL): {rows.num_rows:,}. They were there before, or somebody inserted them: "
            "delete them by hand if they are wrong."
        )

    def _await(self, position: Position, what: str) -> None:
        self.tell(what)
        self.applied(position)

    def _delete(self, lanes: Sequence[Lane], taken: Taken) -> int:
        found = [self.left(lane, older(lane, taken.below)) for lane in lanes]
        names = list(taken.keys)
        parts = [
            rows.select([lane.shape.remade.now(name) for name in names]).rename_columns(names)
            for lane, rows in zip(lanes, found, strict=True)
            if rows is not None and rows.num_rows
        ]
        if not parts:
            return 0
        keys = pa.concat_tables([part.cast(parts[0].schema) for part in parts]).group_by(names).aggregate([])
        self.tell(f"{keys.num_rows:,} rows are older than the snapshot")
        return self.backfill.deletes(keys)


def deletable(lanes: Sequence[Lane], keys: Sequence[str]) -> tuple[list[Lane], list[str]]:
    """The lanes in whose targets deleted rows are looked for, which these keys tell apart, and why not in others."""
    ordered = next((lane for lane in lanes if lane.shape.sequence_by), None)
    if ordered is not None:
        columns = ", ".join(ordered.shape.sequence_by)
        return [], [
            f"Rows that the table no longer holds stay: {ordered.id} orders its changes by {columns}, "
            f"which a row that is gone does not have ({ordered.config_line})."
        ]
    why = {lane.id: _why_not(lane, keys) for lane in lanes}
    return [lane for lane in lanes if not why[lane.id]], [
        f"Of {name} no rows are deleted: {one}." for name, one in why.items() if one
    ]


def _why_not(lane: Lane, keys: Sequence[str]) -> str:
    if lane.policy == "append" or lane.shape.without_deletes:
        return "it keeps every change, or says `deletes: ignore`"
    rules = {name: lane.shape.remade.rule_of(name) for name in keys}
    other = next((name for name, rule in rules.items() if rule.drop or rule.mask or rule.cast), None)
    return f"its {other} has another type than in the source, or a mask ({lane.config_line})" if other else ""


def older(lane: Lane, below: Sequence[int]) -> str:
    """An SQL condition: rows of the lane's target that are there, and whose last change stands below these first elements of
    a sequence."""
    if lane.policy == "scd2":
        return f'"{end_sequence_columns(1)[0]}" IS NULL AND {_lower(last_sequence_columns(len(below)), below)}'
    there = f' AND "{CDC_DELETED}" IS NOT TRUE' if lane.shape.soft_deletes else ""
    return f"{_lower(cdc_sequence_columns(len(below)), below)}{there}"


def _lower(columns: Sequence[str], than: Sequence[int]) -> str:
    """Written out: not every dialect compares rows, nor finds files by such a comparison."""
    first, at = f'"{columns[0]}"', than[0]
    if len(columns) == 1:
        return f"{first} < {at}"
    return f"({first} < {at} OR ({first} = {at} AND {_lower(columns[1:], than[1:])}))"
