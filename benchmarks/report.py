"""The figures as one table."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = (
    "what",
    "events/s",
    "steady",
    "of raw",
    "of default raw",
    "of JDBC",
    "CPU s per 100k",
    "server CPU",
    "peak MB",
    "MB written",
    "rows per commit",
)
EMPTY = "-"
AGAIN = ", again"
"""Behind the name of what is measured a second time, as a control."""


def show(figures: Mapping[str, Any]) -> None:
    """Print what `throughput` measured."""
    lanes, raw = figures["lanes"], figures["raw"]
    base = raw_rate(figures)
    jdbc = (lanes.get("jdbc") or {}).get("rate")
    table = Table(title=f"{figures['events']:,} events of {figures['mean_bytes']:,.0f} bytes, one partition")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "what" else "right")
    for name, each in raw.items():
        table.add_row(
            f"raw, {name}", f"{each['rate']:,.0f}", EMPTY, EMPTY, EMPTY, EMPTY, _per_100k(each["cpu"], each["events"])
        )
    for name, lane in lanes.items():
        table.add_row(name, *_row(lane, base, figures["raw"]["library defaults"]["rate"], jdbc))
    Console(width=150).print(table)
    print(f"A/A control: {control(figures):.2f} (the first lane once more; a ratio that differs less from 1 says nothing)")


def control(figures: Mapping[str, Any]) -> float:
    """The rate of the lane that was measured twice, the second run by the first."""
    lanes = figures["lanes"]
    again = next(name for name in lanes if name.endswith(AGAIN))
    return float(lanes[again]["rate"] / lanes[again.removesuffix(AGAIN)]["rate"])


def raw_rate(figures: Mapping[str, Any]) -> float:
    """The mean of the raw rates of the run that were taken with the program's own settings."""
    rates = [each["rate"] for name, each in figures["raw"].items() if name.startswith("own")]
    return float(sum(rates) / len(rates))


def _row(lane: Mapping[str, Any], raw: float, default: float, jdbc: float | None) -> list[str]:
    commits = [rows for each in lane.get("commits", {}).values() for rows in each]
    return [
        f"{lane['rate']:,.0f}",
        f"{lane['steady']:,.0f}" if lane.get("steady") else EMPTY,
        f"{lane['rate'] / raw:.2f}",
        f"{lane['rate'] / default:.2f}",
        f"{lane['rate'] / jdbc:.2f}" if jdbc else EMPTY,
        _per_100k(lane["cpu"], lane["events"]),
        _per_100k(lane["server_cpu"], lane["events"]) if lane.get("server_cpu") else EMPTY,
        f"{lane['peak_rss'] / 1e6:,.0f}",
        f"{lane['bytes'] / 1e6:,.0f}",
        f"{len(commits)} x {median(commits):,.0f}" if commits else EMPTY,
    ]


def _per_100k(cpu: float, events: int) -> str:
    return f"{cpu / events * 100_000:.2f}"
