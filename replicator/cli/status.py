"""`replicator status` and `top`: the state of every lane, once or continuously."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from typing import Any

import click

from replicator.domain.plain_values import format_count, to_printable

from .session import CommandSession, command, to_cell

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
        console.print(
            to_printable(
                "\n".join(
                    (
                        "",
                        "positions: the offset to read next",
                        *_list_positions(report),
                        *_list_retention(report),
                        *_list_schemas(report),
                    )
                )
            ),
            soft_wrap=True,
            markup=False,
        )


def _list_positions(report: dict[str, Any]) -> list[str]:
    """Positions in the form of `lanes skip --until`."""
    lines = []
    for one in (*report["sources"], *report["lanes"]):
        at = (f"{topic}:{p}:{offset}" for topic, parts in one["position"].items() for p, offset in parts.items())
        lines.append(f"{one.get('id') or 'source ' + one['name']}  {','.join(at) or 'none yet'}")
    return lines


def _list_retention(report: dict[str, Any]) -> list[str]:
    """The tombstone retention of each lane, and the tombstones that it has removed."""
    lines = ["", "tombstones: how long deletes are kept"]
    for lane in report["lanes"]:
        if tombstones := lane.get("tombstones"):
            purge = tombstones["forgotten"]
            floor = ", ".join(map(str, purge["up_to"])) if purge else ""
            since = f"; removed up to ({floor}), before {purge['before']}" if purge else ""
            lines.append(f"{lane['id']}  {tombstones['retention'] or 'for ever'}{since}")
    return lines if len(lines) > 2 else []


def _list_schemas(report: dict[str, Any]) -> list[str]:
    """All schema versions of each lane."""
    from .start import list_schema_lines

    versions = [(lane["id"], line) for lane in report["lanes"] for line in list_schema_lines(lane.get("schemas", []))]
    return (
        ["", "schemas: number, time, state, position, changes", *(f"{lane}  {line}" for lane, line in versions)]
        if versions
        else []
    )


def _list_waiting(report: dict[str, Any]) -> list[str]:
    """Lanes that wait until a schema is accepted, and have no error that says so."""
    lines = []
    for lane in report["lanes"]:
        for one in lane.get("schemas", ()):
            if one["state"] == "pending" and not lane["error"]:
                lines += ["", f"{lane['id']} waits for schema {one['number']}: {'; '.join(one['changes'])}"]
    return lines


def _list_calls(report: dict[str, Any]) -> list[str]:
    """Long calls of sources, sinks and the dead-letter store. Without them, a server that does not answer looks busy."""
    source_calls = {source["name"]: source["call"] for source in report["sources"] if source.get("call")}
    calls = {lane["sink"]: lane["call"] for lane in report["lanes"] if lane.get("call")}
    rows = [("source", *one) for one in source_calls.items()] + [("sink", *one) for one in calls.items()]
    lines = [line for kind, name, call in rows for line in ("", f"{kind} {name}: {call['doing']}, since {call['since']}")]
    if call := report.get("dead_letter_call"):
        answer = call["error"] or "no answer yet"
        lines += ["", f"dead-letter store: {call['doing']}, since {call['since']}: {answer}"]
    return lines


def _make_view(report: dict[str, Any], width: int) -> Any:
    """A table if it fits, otherwise a block per lane; then the problems and next steps."""
    from rich.text import Text

    table = _list_table(report)
    lines = table if max(map(len, table), default=0) <= width else _list_blocks(report)
    more = (
        *_list_changed_files(report),
        *_list_paces(report),
        *_list_transactions(report),
        *_list_row_losses(report),
        *_list_projections(report),
        *_list_checkpoints(report),
        *_list_comparisons(report),
        *_list_dead_letters(report),
        *_list_calls(report),
        *_list_troubles(report),
        *_list_waiting(report),
    )
    text = Text(to_printable("\n".join((_summarize(report), "", *lines, *more))), no_wrap=True)
    for pattern, colour in COLOURS.items():
        text.highlight_regex(pattern, colour)
    return text


def _list_changed_files(report: dict[str, Any]) -> list[str]:
    """Files of the config that were changed since the daemon started."""
    changed = (report.get("config") or {}).get("changed", ())
    advice = "The daemon still uses the old config: run `replicator check` and `replicator plan`, then restart it."
    return [line for file in changed for line in ("", f"{file} has changed since the daemon started. {advice}")]


def _list_table(report: dict[str, Any]) -> list[str]:
    rows = [HEADINGS, *(_list_cells(lane) for lane in report["lanes"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    pads = [str.rjust if i >= FIRST_FIGURE else str.ljust for i in range(len(HEADINGS))]
    lines = ["  ".join(p(c, w) for p, c, w in zip(pads, row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def _list_blocks(report: dict[str, Any]) -> list[str]:
    lines = []
    for lane in report["lanes"]:
        name, _, _, status, *figures = _list_cells(lane)
        lines += [name, f"    {status}"]
        lines += [f"    {head} {figure}" for head, figure in zip(HEADINGS[FIRST_FIGURE:], figures, strict=True) if figure]
    return lines


def _list_paces(report: dict[str, Any]) -> list[str]:
    """The pace of each source whose stream runs in an engine."""
    paced = [source for source in report.get("sources", ()) if source.get("pace")]
    if not paced:
        return []
    from replicator.ports.source import Pace

    return [line for source in paced for line in ("", Pace(**source["pace"]).to_text(source["name"]))]


def _list_transactions(report: dict[str, Any]) -> list[str]:
    """The last transaction of each source with `transactions`."""
    lines = []
    for source in report.get("sources", ()):
        if state := source.get("transactions"):
            name, ended_at = state["last"], state["ended_at"]
            last = f"transaction {name} of {ended_at}" if name else "no transaction since the start"
            more = "" if state["exact"] else f", and parts of later ones; {state['given_up']:,} incomplete"
            waiting = f"; waiting: {format_count(state['held_bytes'], 'byte')}" if state["held_bytes"] else ""
            lines += ["", f"source {source['name']} is handed over up to {last}{more}{waiting}"]
            lines += [f"  {state['waits_for']}"] if state.get("waits_for") else []
    return lines


def _list_row_losses(report: dict[str, Any]) -> list[str]:
    """Sources whose connectors may lose rows."""
    losses = [(source["name"], source["row_loss"]) for source in report.get("sources", ()) if source.get("row_loss")]
    return [line for name, loss in losses for line in ("", f"source {name}: {loss['sentence']}", f"  {loss['next_step']}")]


def _list_projections(report: dict[str, Any]) -> list[str]:
    """The state of each projection."""
    lines = []
    for one in report.get("projections", ()):
        version = "" if one["version"] is None else f", version {one['version']}"
        lines += ["", f"projection {one['name']} -> {one['target']} is {one['status']}{version}"]
        lines += [f"  {text}" for text in (one["error"], one["next_step"]) if text]
    return lines


def _list_checkpoints(report: dict[str, Any]) -> list[str]:
    """The last checkpoint of each lane that has checkpoints, or should have some."""
    from .operate import format_checkpoint

    lines = []
    for one in report.get("snapshots", ()):
        if one["number"] is not None:
            lines += ["", format_checkpoint(one) + ("" if one["usable"] else ", made with another config")]
        elif one["lane"]:
            lines += ["", f"{one['lane']}: no snapshot yet"]
        lines += [f"  {one['error']}"] if one["error"] else []
    return lines


def _list_comparisons(report: dict[str, Any]) -> list[str]:
    """The last comparison of each lane with its source."""
    from .diff_report import format_age, format_counts

    lines = [""] if report.get("comparisons") else []
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


def _list_troubles(report: dict[str, Any]) -> list[str]:
    lines = []
    for source in report.get("sources", ()):
        if source.get("away_since"):
            since = datetime.fromisoformat(source["away_since"]).astimezone().isoformat(sep=" ", timespec="seconds")
            lines += ["", f"source {source['name']} is away since {since}: {source['error']}"]
    for lane in report["lanes"]:
        if lane["error"]:
            lines += ["", f"{lane['id']} is {lane['status']}: {lane['error']}"]
            lines += [f"  {lane['next_step']}"] if lane["next_step"] else []
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
