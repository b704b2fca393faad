"""The gold tables of the examples: a refresh of the groups that were touched beside one of everything, in process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from adapters.gold import LocalProjector
from adapters.sinks.delta.sink import CHANGE_DATA_FEED
from replicator.application.operations.refresh import ProjectionRefresher
from replicator.domain.projection import Projection, ProjectionInput
from replicator.settings.queries import QueryContext, read_query

from .projections import FILES, case, least

SQL = Path(__file__).parents[1] / "config" / "examples" / "sql"
FIRST_DAY = 18_500
"""Days since 1970: 26 August 2020."""
CUSTOMERS = 1_000_000


@dataclass(frozen=True)
class Example:
    """
    A query of `config/examples` over one large table with a partition for each group, as docs/how-to/build-gold-tables.md
    has it, and perhaps a small one; a change gives `changed` another value.
    """

    sql: str
    table: str
    make: Callable[[np.random.Generator, np.ndarray], pa.Table]
    """The rows, for the number of the group of each."""
    group: str
    """What the query calls it."""
    within: str
    """What the table calls it."""
    key: str
    changed: Mapping[str, str]
    keys: tuple[str, ...]
    beside: Mapping[str, Callable[[int], pa.Table]] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    def projection(self, name: str) -> Projection:
        """As its config would have it."""
        text = (SQL / self.sql).read_text(encoding="utf-8")
        said = QueryContext("local", [self.table, *self.beside], self.group, self.parameters)
        query, wrong = read_query(text, said)
        if query is None:
            raise SystemExit(str(wrong))
        reads = tuple(ProjectionInput(table, "lake", table, key, query.columns) for table, key in query.keys.items())
        return Projection(name, query.text, reads, "lake", name, self.keys, self.group, name)


def _users(random: np.random.Generator, group: np.ndarray) -> pa.Table:
    number = pa.array(np.arange(len(group)))
    days = FIRST_DAY + random.integers(0, 400, len(group))
    return pa.table(
        {"user_id": number, "name": _name_rows("user ", number), "city": _cities(group), "last_login": _days(days)}
    )


def _cities(group: np.ndarray) -> pa.Array:
    return _name_rows("city ", pa.array(group))


def _states(groups: int) -> pa.Table:
    return pa.table({"city": _cities(np.arange(groups)), "state": _name_rows("state ", pa.array(np.arange(groups) % 50))})


def _orders(random: np.random.Generator, group: np.ndarray) -> pa.Table:
    states = pa.array(["new", "paid", "shipped", "delivered", "cancelled"])
    return pa.table({
        "id": np.arange(len(group)),
        "customer_id": random.integers(0, CUSTOMERS, len(group)),
        "ordered_on": _days(FIRST_DAY + group),
        "status": states.take(pa.array(random.integers(0, 5, len(group)))),
        "total_amount": pc.cast(pa.array(random.integers(100, 100_000, len(group)), pa.int32()), pa.decimal128(18, 2)),
    })  # fmt: skip


def _name_rows(what: str, number: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(what, pc.cast(number, pa.string()), "")


def _days(days: np.ndarray) -> pa.Array:
    return pa.array(days.astype("int32")).cast(pa.date32())


REVENUE = Example(
    "revenue-by-day-and-customer.sql", "orders", _orders, "day", "ordered_on", "id", {"total_amount": "total_amount + 1"},
    ("day", "customer_id"),
)  # fmt: skip
OTHER_STATUS = "CASE status WHEN 'new' THEN 'paid' ELSE 'new' END"
EXAMPLES = {
    "features": Example(
        "users-features.sql", "users", _users, "city", "city", "user_id", {"last_login": "last_login + 1"}, ("user_id",),
        {"cities": _states}, {"reference_date": "2021-10-17"},
    ),
    "revenue": REVENUE,
    "funnel": replace(REVENUE, sql="order-funnel.sql", changed={"status": OTHER_STATUS}, keys=("day", "status")),
}  # fmt: skip


def measure(rows: int, groups: int, share: float, rounds: int, examples: Sequence[str]) -> dict[str, Any]:
    """As `projections.measure`: for each example, the least of the rounds counts."""
    cases = []
    for name in examples:
        example = EXAMPLES[name]
        with tempfile.TemporaryDirectory(prefix="replicator-gold-") as folder:
            lake = Path(folder)
            group = _make(lake, example, rows, groups)
            refreshing = ProjectionRefresher(
                LocalProjector({"sinks": {"lake": {"path": folder, "compact_every": 0}}}), "benchmarks"
            )
            projection = example.projection(name)
            refreshing.refresh(projection)
            for number in range(rounds):
                touched = _change(lake, example, group, share, number)
                cases.append(case(refreshing, "example", projection, touched))
    return {"rows": rows, "groups": groups, "cases": least(cases)}


def _make(lake: Path, example: Example, rows: int, groups: int) -> np.ndarray:
    """The tables; the number of the group of each row, in their order."""
    random = np.random.default_rng(7)
    group = np.sort(random.integers(0, groups, rows))
    write_deltalake(
        lake / example.table, example.make(random, group), partition_by=[example.within], target_file_size=FILES,
        configuration={CHANGE_DATA_FEED: "true"},
    )  # fmt: skip
    for name, made in example.beside.items():
        write_deltalake(lake / name, made(groups))
    return group


def _change(lake: Path, example: Example, group: np.ndarray, share: float, number: int) -> int:
    """Change one row of each of so many groups, another one each time; how many groups that were."""
    groups = int(group[-1]) + 1
    wanted = np.random.default_rng(number).choice(groups, max(1, int(groups * share)), replace=False)
    chosen = np.searchsorted(group, wanted) + number
    rows = example.make(np.random.default_rng(0), group[chosen])
    places = ", ".join(f"'{value}'" for value in rows[example.within].to_pylist())
    which = f"{example.within} IN ({places}) AND {example.key} IN ({', '.join(map(str, chosen))})"
    DeltaTable(lake / example.table).update(dict(example.changed), predicate=which)
    return len(wanted)
