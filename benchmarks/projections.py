"""A refresh of the groups that were touched beside one of everything, in process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from rich.console import Console
from rich.table import Table

from adapters.gold import LocalProjector
from adapters.sinks.delta.sink import CHANGE_DATA_FEED
from replicator.application.operations.refresh import ProjectionRefresher, RefreshResult
from replicator.domain.projection import Projection, ProjectionInput
from replicator.settings.queries import QueryContext, read_query

QUERIES = {
    "sums": "SELECT city, COUNT(*) AS users, SUM(amount) AS amount, MAX(seen) AS seen FROM users GROUP BY city",
    "ranks": "SELECT id, city, amount, RANK() OVER (PARTITION BY city ORDER BY amount DESC, id) AS place, "
    "COUNT(*) OVER (PARTITION BY city) AS users FROM users",
}
"""One row for each group, and one for each row of the input."""

LAYOUTS = ("scattered", "partitioned", "appended")
"""Rows of a group are in all files of the input, or in those of one partition, and a merge changes a row of each group
that is touched; or groups come one after another, as days do, and the last ones get rows more."""

FILES = 32 * 1024 * 1024
PARTITIONS = 1000
"""At most; where there are more groups each has some that lie beside each other."""


TAKEN = ("part", "part_cpu", "full", "full_cpu", "again", "again_cpu")
"""Seconds of a refresh of the groups that were touched, of everything, and of everything once more as a control."""


def measure(rows: int, groups: int, share: float, rounds: int, layouts: Sequence[str], *, feed: bool) -> dict[str, Any]:
    """Seconds, and seconds of processor time, of both kinds of refresh for each query and layout, in turns; the least of the
    rounds counts."""
    cases = []
    for layout in layouts:
        with tempfile.TemporaryDirectory(prefix="replicator-projections-") as folder:
            lake = Path(folder)
            _make(lake, rows, groups, layout, feed=feed)
            refreshing = ProjectionRefresher(
                LocalProjector({"sinks": {"lake": {"path": folder, "compact_every": 0}}}), "benchmarks"
            )
            for name in QUERIES:
                refreshing.refresh(_projection(name))
            for number in range(rounds):
                touched = (_append if layout == "appended" else _merge)(lake, rows, groups, share, number)
                cases += [case(refreshing, layout, _projection(name), touched) for name in QUERIES]
    return {"rows": rows, "groups": groups, "cases": least(cases)}


def case(refreshing: ProjectionRefresher, layout: str, projection: Projection, touched: int) -> dict[str, Any]:
    """Both refreshes, after so many groups have changed."""
    part, taken = measure_refresh(refreshing, projection, full=False)
    if (part.kind, part.groups) != ("groups", touched):
        raise SystemExit(f"{projection.name}: {part.groups} groups instead of {touched}, {part.kind}: {part.reason}")
    whole, of_all = measure_refresh(refreshing, projection, full=True)
    _, again = measure_refresh(refreshing, projection, full=True)
    return {"layout": layout, "query": projection.name, "touched": touched, "rows": part.rows, "of": whole.rows,
            **dict(zip(TAKEN, (*taken, *of_all, *again), strict=True))}  # fmt: skip


def measure_refresh(
    refreshing: ProjectionRefresher, projection: Projection, *, full: bool
) -> tuple[RefreshResult, tuple[float, float]]:
    """Memory that changing the input took is given back before, not at whose expense it happens to be: it is 40 ms."""
    pa.default_memory_pool().release_unused()
    began, used = time.perf_counter(), time.process_time()
    done = refreshing.refresh(projection, full=full)
    return done, (time.perf_counter() - began, time.process_time() - used)


def least(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each query and layout, the least of the rounds."""
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    for case in cases:
        best = kept.setdefault((case["layout"], case["query"]), dict(case))
        best |= {key: min(best[key], case[key]) for key in TAKEN}
    return list(kept.values())


def _projection(name: str) -> Projection:
    query, wrong = read_query(QUERIES[name], QueryContext("local", ["users"], "city"))
    if query is None:
        raise SystemExit(str(wrong))
    read = ProjectionInput("users", "lake", "users", query.keys["users"], query.columns)
    return Projection(name, query.text, (read,), "lake", name, (), "city", name)


def _make(lake: Path, rows: int, groups: int, layout: str, *, feed: bool) -> None:
    random = np.random.default_rng(7)
    city = random.integers(0, groups, rows)
    if layout != "scattered":
        city.sort()
    columns = {"id": np.arange(rows), "city": city, "amount": random.integers(0, 10**6, rows)}
    days = pa.array(random.integers(18_000, 20_000, rows).astype("int32"), pa.int32()).cast(pa.date32())
    table = pa.table({**columns, "seen": days})
    settings = {CHANGE_DATA_FEED: str(feed).lower()}
    by = None
    if layout == "partitioned":
        by = ["part"]
        table = table.append_column("part", pa.array(city // -(-groups // PARTITIONS)))
    write_deltalake(lake / "users", table, partition_by=by, target_file_size=FILES, configuration=settings)


def _merge(lake: Path, rows: int, groups: int, share: float, number: int) -> int:
    """Change one row of each of so many groups, by a merge; how many groups that were."""
    wanted = np.random.default_rng(number).choice(groups, max(1, int(groups * share)), replace=False)
    table = DeltaTable(lake / "users")
    there = table.to_pyarrow_table(columns=["id", "city"])
    cities, first = np.unique(there["city"].to_numpy(), return_index=True)
    chosen = first[np.isin(cities, wanted)]
    ids = there["id"].to_numpy()[chosen]
    source = pa.table({"id": ids, "amount": np.full(len(ids), rows + number)})
    merger = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update({"amount": "s.amount"}).execute()
    return len(ids)


def _append(lake: Path, rows: int, groups: int, share: float, number: int) -> int:
    """A row more for each of the last groups; how many groups that were."""
    wanted = max(1, int(groups * share))
    city = np.arange(groups - wanted, groups)
    days = pa.array(np.full(wanted, 20_000 + number, "int32"), pa.int32()).cast(pa.date32())
    columns = {"id": rows + number * groups + city, "city": city, "amount": np.full(wanted, number)}
    write_deltalake(lake / "users", pa.table({**columns, "seen": days}), mode="append")
    return wanted


def show(figures: Mapping[str, Any]) -> None:
    """Print what was measured."""
    table = Table(title=f"{figures['rows']:,} rows in {figures['groups']:,} groups")
    for name in ("input", "query", "groups touched", "rows written", "of all", "touched s", "everything s", "ratio",
                 "A/A", "touched CPU s", "everything CPU s", "ratio", "A/A"):  # fmt: skip
        table.add_column(name, justify="left" if name in ("input", "query") else "right")
    for case in figures["cases"]:
        table.add_row(
            case["layout"], case["query"], f"{case['touched']:,}", f"{case['rows']:,}", f"{case['of']:,}",
            *_format_ratios(case["part"], case["full"], case["again"]),
            *_format_ratios(case["part_cpu"], case["full_cpu"], case["again_cpu"]),
        )  # fmt: skip
    Console(width=170).print(table)


def _format_ratios(part: float, full: float, again: float) -> tuple[str, ...]:
    return f"{part:.2f}", f"{full:.2f}", f"{part / full:.2f}", f"{again / full:.2f}"
