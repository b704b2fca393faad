"""`replicator status` and `top`: the state of every lane, once or continuously."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from typing import Any

import click

from replicator.domain.plain_values import format_count, to_printable

from .session import CommandSession, command, format_position, to_cell

HEADINGS = ("lane", "table", "policy", "status", "lag", "age s", "applied", "rejected", "dlq")
FIRST_FIGURE = 4
UNBOUNDED = 10_000
COLOURS = {
    r"\brunning\b": "green",
    r"\b(starting|catching_up|retrying|paused|stopping)\b": "yellow",
    r"\bsuspended\b": "red",
}
"""Colours of states on a terminal."""


@command("status", "replicator status -v")
def status(session: CommandSession) -> None:
    """Show the state, lag and errors of each lane.

    Reads from the running daemon, or from the targets if it is not running. With -v also positions, tombstone retention and
    schema versions.
    """
    report = _read_report(session)
    session.emit(report, _summarize(report), text=lambda: _print_report(report, positions=session.verbosity > 0))


@command("top", "replicator top --interval 5")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Seconds between two updates.",
)
def top(session: CommandSession, interval: float) -> None:
    """Show the status continuously, until Ctrl-C.

    With --json, or in a pipe, prints it once.
    """
    from rich.console import Console
    from rich.live import Live

    report = _read_report(session)
    console = Console()
    if session.as_json or not console.is_terminal:
        session.emit(report, _summarize(report), text=lambda: _print_report(report))
        return
    try:
        with Live(_make_view(report, console.width), console=console, refresh_per_second=4) as live:
            while True:
                time.sleep(interval)
                live.update(_make_view(_read_report(session), console.width))
    except KeyboardInterrupt:
        return


def _read_report(session: CommandSession) -> dict[str, Any]:
    from replicator.application.operations.checkpoint_schedule import report_checkpoints as snapshots_report
    from replicator.application.operations.diff_runs import report_runs
    from replicator.application.operations.lanes import read_status
    from replicator.wiring.daemon_client import ask_status

    running = ask_status(session.loaded)
    if running is not None:
        return running
    stored = read_status(session.components)
    lanes = {lane["id"]: lane["table"] for lane in stored["lanes"]}
    comparisons = report_runs(session.components.folder, lanes)
    return {**stored, "snapshots": snapshots_report(session.components, lanes), "comparisons": comparisons}


def _summarize(report: dict[str, Any]) -> str:
    running = "running" if report["running"] else "not running"
    page = f"; the engine's own page is {report['engine_page']}" if report.get("engine_page") else ""
    return f"pipeline {report['pipeline']} is {running}, {format_count(len(report['lanes']), 'lane')}{page}"


def _print_report(report: dict[str, Any], *, positions: bool = False) -> None:
    from rich.console import Console

    console = Console()
    width = console.width if console.is_terminal else UNBOUNDED
    # No line breaks of ours: a name with a line break cannot be copied.
    console.print(_make_view(report, width), soft_wrap=True)
    if positions:
        console.print(to_printable("\n".join(_list_details(report))), soft_wrap=True, markup=False)


def _list_details(report: dict[str, Any]) -> list[str]:
    """Positions, the tombstones of each lane, and all its schema versions."""
    from .start import list_schema_lines

    lines = ["", "positions: the offset to read next"]
    for one in (*report["sources"], *report["lanes"]):
        position = format_position(one["position"]) or "none yet"
        lines.append(f"{one.get('id') or 'source ' + one['name']}  {position}")
    retention = []
    for lane in report["lanes"]:
        if tombstones := lane.get("tombstones"):
            purge = tombstones["forgotten"]
            purged_up_to = ", ".join(map(str, purge["up_to"])) if purge else ""
            since = f"; removed up to ({purged_up_to}), before {purge['before']}" if purge else ""
            retention.append(f"{lane['id']}  {tombstones['retention'] or 'for ever'}{since}")
    if retention:
        lines += ["", "tombstones: how long deletes are kept", *retention]
    versions = [f"{lane['id']}  {line}" for lane in report["lanes"] for line in list_schema_lines(lane.get("schemas", []))]
    if versions:
        lines += ["", "schemas: number, time, state, position, changes", *versions]
    return lines


def _make_view(report: dict[str, Any], width: int) -> Any:
    """A table if it fits, otherwise a block per lane; then the problems and next steps."""
    from rich.text import Text

    rows = [HEADINGS, *(_list_cells(lane) for lane in report["lanes"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    pads = [str.rjust if i >= FIRST_FIGURE else str.ljust for i in range(len(HEADINGS))]
    table = ["  ".join(p(c, w) for p, c, w in zip(pads, row, widths, strict=True)).rstrip() for row in rows]
    table.insert(1, "  ".join("-" * w for w in widths))
    if max(map(len, table)) > width:
        table = []
        for name, _, _, state, *figures in rows[1:]:
            table += [name, f"    {state}"]
            table += [f"    {head} {one}" for head, one in zip(HEADINGS[FIRST_FIGURE:], figures, strict=True) if one]
    more = (
        *_list_sources(report),
        *_list_schedules(report),
        *_list_dead_letters(report),
        *_list_calls(report),
        *_list_problems(report),
    )
    text = Text(to_printable("\n".join((_summarize(report), "", *table, *more))), no_wrap=True)
    for pattern, colour in COLOURS.items():
        text.highlight_regex(pattern, colour)
    return text


def _list_sources(report: dict[str, Any]) -> list[str]:
    """Changed files of the config. Then of the sources: their pace in an engine, the last transaction, and connectors that
    may lose rows."""
    lines = []
    advice = "The daemon still uses the old config: run `replicator check` and `replicator plan`, then restart it."
    for file in (report.get("config") or {}).get("changed", ()):
        lines += ["", f"{file} has changed since the daemon started. {advice}"]
    sources = report.get("sources", ())
    for source in sources:
        if source.get("pace"):
            from replicator.ports.source import Pace  # Imports Arrow, which a status seldom needs.

            lines += ["", Pace(**source["pace"]).to_text(source["name"])]
    for source in sources:
        if state := source.get("transactions"):
            name, ended_at = state["last"], state["ended_at"]
            last = f"transaction {name} of {ended_at}" if name else "no transaction since the start"
            more = "" if state["exact"] else f", and parts of later ones; {state['given_up']:,} incomplete"
            waiting = f"; waiting: {format_count(state['held_bytes'], 'byte')}" if state["held_bytes"] else ""
            lines += ["", f"source {source['name']} is handed over up to {last}{more}{waiting}"]
            lines += [f"  {state['waits_for']}"] if state.get("waits_for") else []
    for source in sources:
        if loss := source.get("row_loss"):
            lines += ["", f"source {source['name']}: {loss['sentence']}", f"  {loss['next_step']}"]
    return lines


def _list_schedules(report: dict[str, Any]) -> list[str]:
    """The state of each projection, and of each lane the last checkpoint and the last comparison with its source."""
    from .diff_report import format_age, format_counts
    from .operate import format_checkpoint

    lines = []
    for one in report.get("projections", ()):
        version = "" if one["version"] is None else f", version {one['version']}"
        lines += ["", f"projection {one['name']} -> {one['target']} is {one['status']}{version}"]
        lines += [f"  {text}" for text in (one["error"], one["next_step"]) if text]
    for one in report.get("snapshots", ()):
        if one["number"] is not None:
            lines += ["", format_checkpoint(one) + ("" if one["usable"] else ", made with another config")]
        elif one["lane"]:
            lines += ["", f"{one['lane']}: no checkpoint yet"]
        lines += [f"  {one['error']}"] if one["error"] else []
    lines += [""] if report.get("comparisons") else []
    for one in report.get("comparisons", ()):
        age = format_age(one["begun"])
        if one["error"]:
            lines += [f"{one['lane']}: not compared {age}: {one['error']}"]
            lines += [f"  {one['next_step']}"] if one["next_step"] else []
        else:
            verdict = format_counts({kind: one[kind] for kind in ("missing", "extra", "different")})
            lines += [f"{one['lane']}: compared {age}: {verdict}"]
    return lines


def _list_dead_letters(report: dict[str, Any]) -> list[str]:
    """The open dead letters of each source, and the records that this run rejected."""
    lines, waiting = [], Counter[str]()
    for group in report.get("dead_letters") or ():
        waiting[group["source"]] += group["open"]
    for source, count in sorted(waiting.items()):
        lines += [
            "",
            f"source {source or '?'}: {format_count(count, 'open dead letter')} (`replicator dlq list --state open`)",
        ]
    lines += [""] if report.get("rejects") else []
    for one in report.get("rejects", ()):
        table = f"table {one['table']}" if one["table"] else "a table that could not be read"
        where = f"source {one['source']}: {format_count(one['records'], 'record')} of {table} rejected since the start"
        lines.append(f"{where}, as {one['code']} in stage {one['stage']}")
    return lines


def _list_calls(report: dict[str, Any]) -> list[str]:
    """Long calls of sources, sinks and the dead-letter store. Without them, a server that does not answer looks busy."""
    calls = {("source", source["name"]): source["call"] for source in report["sources"] if source.get("call")}
    calls |= {("sink", lane["sink"]): lane["call"] for lane in report["lanes"] if lane.get("call")}
    lines = []
    for (kind, name), call in calls.items():
        lines += ["", f"{kind} {name}: {call['doing']}, since {call['since']}"]
    if call := report.get("dead_letter_call"):
        answer = call["error"] or "no answer yet"
        lines += ["", f"dead-letter store: {call['doing']}, since {call['since']}: {answer}"]
    return lines


def _list_problems(report: dict[str, Any]) -> list[str]:
    """Sources that do not answer, errors of lanes, and lanes that wait until a schema is accepted."""
    lines = []
    for source in report.get("sources", ()):
        if source.get("away_since"):
            since = datetime.fromisoformat(source["away_since"]).astimezone().isoformat(sep=" ", timespec="seconds")
            lines += ["", f"source {source['name']} is away since {since}: {source['error']}"]
    for lane in report["lanes"]:
        if lane["error"]:
            lines += ["", f"{lane['id']} is {lane['status']}: {lane['error']}"]
            lines += [f"  {lane['next_step']}"] if lane["next_step"] else []
    for lane in report["lanes"]:
        # The error of a lane says so itself.
        for one in () if lane["error"] else lane.get("schemas", ()):
            if one["state"] == "pending":
                lines += ["", f"{lane['id']} waits for schema {one['number']}: {'; '.join(one['changes'])}"]
    return lines


def _list_cells(lane: dict[str, Any]) -> tuple[str, ...]:
    counts = lane["counts"] or {}
    age = lane["lag_seconds"]
    figures = (
        lane["lag_records"],
        None if age is None else round(age, 1),
        counts.get("applied"),
        counts.get("rejected"),
        lane["dead_letters"],
    )
    cells = ("" if f is None else f"{f:,}" for f in figures)
    return *(to_cell(lane[name]) for name in ("id", "table", "policy", "status")), *cells
