"""A prepared target: its table, the temporary tables its rows pass through, and the statements that move them.

Per lane and connection there is one staging table, typed as the target's own columns (so that PostgreSQL checks lengths,
domains and enums on the way in), and one of the same shape for rows that stage 3 completed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.change import OP, RESET, UNSENT
from replicator.domain.plan import CDC_DELETED, CDC_DELETED_AT, CDC_OP, ApplyPlan, Cut, Deleted
from replicator.domain.retention import Forgetting
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.ports.frames import Lane

from .departures import another_row
from .dialect import POSTGRES
from .pg_copy import copy_statement
from .pg_instants import instant
from .pg_ledger import forget, upsert
from .pg_literals import ARRAY_FORM, PLAIN_FORM
from .pg_names import quoted
from .pg_types import Fit
from .render import merge
from .repair import APPLY, INCOMPLETE, LATE, VERDICT, cleared, forgotten, from_columns, repair_select
from .rows import POSITION

PLACEHOLDER = "\0rows\0"
"""Where a statement takes its rows from a parameter; no identifier can hold it."""

ROW = "_cdc_row"
"""The number of a row in the batch, by which the server's answers are matched with the rows in memory."""


@dataclass
class Target:
    """Where the rows of one lane go. `number` names its temporary tables; `indexed`: each row is found by an index;
    `filled`: the open transaction has put rows into the temporary tables. `without_equality`: columns of a history whose
    values are compared as text. `keeps_as_is`: see `pg_versions_here`."""

    lane: Lane
    plan: ApplyPlan
    schema: str
    table: str
    fits: dict[str, Fit]
    number: int
    indexed: bool
    ledger: str | None
    without_equality: frozenset[str] = frozenset()
    keeps_as_is: bool = False
    staged: dict[str, int] = field(default_factory=dict)
    filled: bool = False

    def __post_init__(self) -> None:
        self._known: dict[object, bytes] = {}

    def _once(self, key: object, render: Callable[[], str]) -> bytes:
        """Rendering takes longer than a small write, so each statement is rendered once."""
        if key not in self._known:
            self._known[key] = render().encode()
        return self._known[key]

    @cached_property
    def relation(self) -> str:
        """The table as SQL."""
        return quoted(self.schema, self.table)

    @property
    def stage(self) -> str:
        """The staging table's name; it has no schema."""
        return f"stage_{self.number}"

    @property
    def repaired(self) -> str:
        """The name of the table of completed rows."""
        return f"repaired_{self.number}"

    @cached_property
    def arrow(self) -> pa.Schema:
        """The types rows must be cast to before they are sent."""
        return pa.schema([pa.field(name, fit.arrow) for name, fit in self.fits.items()])

    @property
    def event_log(self) -> bool:
        """The rows are records, not changes: no operation, nothing unsent."""
        return self.plan.fold == "none" and not self.plan.table.sequence

    def names(self, *, whole: bool) -> list[str]:
        """The columns to send: what stage 4 needs, or, `whole`, what stage 3 reads too."""
        plain = [ROW, *([] if self.event_log else [OP]), *self.fits]
        return [*plain, *self._more()] if whole else plain

    def _more(self) -> list[str]:
        return [] if self.event_log else [UNSENT, RESET, *from_columns(self.plan), *POSITION]

    def forms(self, names: Sequence[str]) -> list[str]:
        """The literal form of each of these columns."""
        known = {name: fit.form for name, fit in self.fits.items()} | {UNSENT: ARRAY_FORM}
        keys = zip(from_columns(self.plan), self.plan.table.keys, strict=True)
        known |= {name: self.fits[key].form for name, key in keys if key in self.fits}
        return [known.get(name, PLAIN_FORM) for name in names]

    def copy(self, names: Sequence[str]) -> sql.Composed:
        """COPY of these columns into the staging table."""
        return copy_statement((self.stage,), names)

    def merge(self, numbers: Sequence[int] | None = None, *, repaired: bool = False, into: str | None = None) -> bytes:
        """Stage 4 over all rows that apply, or over those of these ascending numbers; into the target, or into `into`."""
        if numbers is None:
            return self._once(("merge", repaired), lambda: self._merge([], repaired, self.relation))
        return self._merge([of_numbers(numbers)], repaired, into or self.relation).encode()

    def _merge(self, conditions: list[str], repaired: bool, relation: str) -> str:
        return merge(self.plan, POSTGRES, relation, self.applying(conditions, repaired=repaired))

    def applying(self, conditions: Sequence[str], *, repaired: bool) -> str:
        """The staged (or completed) rows that apply, as a relation."""
        conditions = [*conditions, *([f"{quoted(VERDICT)} = '{APPLY}'"] if repaired else [])]
        rows = quoted(self.repaired if repaired else self.stage)
        return f"(SELECT * FROM {rows} WHERE {' AND '.join(conditions)})" if conditions else rows

    def analyze(self, *, whole: bool, repaired: bool = False) -> bytes:
        """Statistics of the staging table (or of the completed rows): of what joins look at only."""
        names = [*(self.plan.merge_keys or (ROW,)), *(from_columns(self.plan) if whole else ())]
        names += [VERDICT] if repaired else []
        return f"ANALYZE {quoted(self.repaired if repaired else self.stage)} ({', '.join(map(quoted, names))})".encode()

    def repair(
        self,
        *,
        ledger: bool,
        floor: SequenceKey | None,
        resent: SequenceKey | None,
        forgetting: Forgetting | None = None,
    ) -> bytes:
        """Stage 3, from the staging table into the table of completed rows. `resent`: see `plan.resent_below`;
        `forgetting`: `retention.can_be_late`."""
        if resent is not None or forgetting is not None:
            return self._repair(ledger, floor, resent, forgetting).encode()
        return self._once(("repair", ledger, floor), lambda: self._repair(ledger, floor, None, None))

    def _repair(
        self, ledger: bool, floor: SequenceKey | None, resent: SequenceKey | None, forgetting: Forgetting | None
    ) -> str:
        select = repair_select(
            self.plan,
            POSTGRES,
            rows=quoted(self.stage),
            related=self.relation,
            ledger=self.ledger if ledger else None,
            floor=floor,
            resent=resent,
            forgetting=forgetting,
            keep=(ROW,),
        )
        return f"INSERT INTO {quoted(self.repaired)} {select}"

    def leave(self) -> bytes:
        """Take out of the staging table the deletes that are of other rows than the target's."""
        where = another_row(self.plan, POSTGRES, as_text=True)
        return self._once("leave", lambda: f"DELETE FROM {quoted(self.stage)} AS r USING {self.relation} AS t WHERE {where}")

    def untold(self) -> bytes:
        """The numbers of staged deletes of which it cannot be told whether they are of other rows than the target's."""
        where = another_row(self.plan, POSTGRES, as_text=True, doubtful=True)
        row, stage = quoted(ROW), quoted(self.stage)
        return self._once("untold", lambda: f"SELECT r.{row} FROM {stage} AS r, {self.relation} AS t WHERE {where}")

    def verdicts(self) -> bytes:
        """How many of the completed rows got which verdict."""
        query = f"SELECT {quoted(VERDICT)}, count(*) FROM {quoted(self.repaired)} GROUP BY 1"
        return self._once("verdicts", lambda: query)

    def given_up(self) -> bytes:
        """The rows that cannot be completed or are late: which of the two, and what they lack."""
        columns = f"{quoted(ROW)}, {quoted(VERDICT)}, {quoted(UNSENT)}"
        query = f"SELECT {columns} FROM {quoted(self.repaired)} WHERE {quoted(VERDICT)} IN ('{INCOMPLETE}', '{LATE}')"
        return query.encode()

    def forget(self, high: SequenceKey) -> bytes:
        """Remove the remembered deletes that are not above `high`."""
        return forget(self.ledger or "", self.plan, high).encode()

    def forget_rows(self, gone: Deleted) -> bytes:
        """Remove the marked rows whose deletes are forgotten."""
        return f"DELETE FROM {self.relation} WHERE {forgotten(self.plan, POSTGRES, gone)}".encode()

    def clear(self, cut: Cut) -> bytes:
        """Remove, or mark, the rows a truncate finds: older ones, and those from before replication began."""
        found = cleared(self.plan, POSTGRES, cut.sequence)
        if not self.plan.soft_deletes:
            return f"DELETE FROM {self.relation} AS t WHERE {found}".encode()
        marks = f"{quoted(CDC_DELETED)} = TRUE, {quoted(CDC_DELETED_AT)} = {instant(cut.at)}"
        return f"UPDATE {self.relation} AS t SET {marks} WHERE {found}".encode()

    def merge_inline(self) -> bytes:
        """Stage 4 over rows given as one JSON parameter."""
        return self._once("merge inline", lambda: self._inline(merge(self.plan, POSTGRES, self.relation, PLACEHOLDER)))

    def remember_inline(self) -> bytes:
        """`remember` for rows given as one JSON parameter."""
        return self._once("remember inline", lambda: self._inline(self._remember(f"{PLACEHOLDER} AS r WHERE")))

    def _inline(self, statement: str) -> str:
        """The statement with its rows taken from the parameter. The stored operation is the operation of the row."""
        operation = f", r.{quoted(CDC_OP)} AS {quoted(OP)}" if CDC_OP in self.fits else ""
        rows = f"(SELECT r.*{operation} FROM json_populate_recordset(NULL::{self.relation}, \0::json) AS r)"
        return statement.replace(PLACEHOLDER, rows).replace("%", "%%").replace("\0", "%s")

    def remember(self, *, repaired: bool) -> bytes:
        """Record the deletes of the batch in the ledger, the highest sequence per key."""
        applied = f"{quoted(self.repaired)} WHERE {quoted(VERDICT)} = '{APPLY}' AND"
        return self._once(
            ("remember", repaired), lambda: self._remember(applied if repaired else f"{quoted(self.stage)} WHERE")
        )

    def _remember(self, rows: str) -> str:
        return upsert(self.ledger or "", self.plan, f"{rows} {quoted(OP)} = 'd'")

    def make_temporary(self, cursor: psycopg.Cursor, generation: int, *, repaired: bool) -> None:
        """Create the temporary tables that this connection does not have yet, and empty them of what an earlier write of
        this transaction left."""
        wanted = {self.stage: ""} | ({self.repaired: f", NULL::text AS {quoted(VERDICT)}"} if repaired else {})
        for name, more in wanted.items():
            if self.staged.get(name) != generation:
                cursor.execute(self._create(name, more), prepare=False)
                self.staged[name] = generation
            elif self.filled:
                cursor.execute(f"TRUNCATE {quoted(name)}".encode())
        self.filled = True

    def _create(self, name: str, more: str) -> bytes:
        return (
            f"DROP TABLE IF EXISTS pg_temp.{quoted(name)}; CREATE TEMP TABLE {quoted(name)} ON COMMIT DELETE ROWS AS "
            f"{self.shape(more)}"
        ).encode()

    def shape(self, more: str = "") -> str:
        """A query without rows that has the staging table's columns, and `more`."""
        columns = [f"t.{quoted(n)}" for n in self.fits]
        if not self.event_log:
            old = [
                f"t.{quoted(k)} AS {quoted(f)}" for f, k in zip(from_columns(self.plan), self.plan.table.keys, strict=True)
            ]
            topic, partition, offset = map(quoted, POSITION)
            columns = [f"NULL::text AS {quoted(OP)}", *columns]
            columns += [f"NULL::text[] AS {quoted(UNSENT)}", f"NULL::boolean AS {quoted(RESET)}", *old]
            columns += [f"NULL::text AS {topic}", f"NULL::int AS {partition}", f"NULL::bigint AS {offset}"]
        return f"SELECT NULL::int AS {quoted(ROW)}, {', '.join(columns)}{more} FROM {self.relation} AS t WITH NO DATA"


def of_numbers(numbers: Sequence[int]) -> str:
    """The condition that a staged row has one of these ascending numbers."""
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"{quoted(ROW)} BETWEEN {numbers[0]} AND {numbers[-1]}"
    return f"{quoted(ROW)} = ANY('{{{','.join(map(str, numbers))}}}'::int[])"
