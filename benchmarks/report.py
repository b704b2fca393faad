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
    for name, lane in lanes.items():
        if "stages" in lane:
            _show_stages(name, lane)


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


def _show_stages(name: str, lane: Mapping[str, Any]) -> None:
    scale = 100_000 / lane["events"]
    table = Table(title=f"{name}: seconds per 100,000 events by stage, without what runs inside it")
    for column in ("stage", "calls", "seconds", "CPU of its thread"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage, each in lane["stages"]["stages"].items():
        table.add_row(stage, str(each["calls"]), f"{each['wall'] * scale:.3f}", f"{each['cpu'] * scale:.3f}")
    for thread, cpu in sorted(lane["threads"].items(), key=lambda item: -item[1]):
        if cpu >= 0.01:
            table.add_row(f"thread: {thread}", EMPTY, EMPTY, f"{cpu * scale:.3f}")
    for place in lane["stages"]["missing"]:
        table.add_row(f"not there any more: {place}")
    Console(width=150).print(table)
