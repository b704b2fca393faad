"""The status page as one self-contained HTML document: no script, all values escaped, readable at any width."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from replicator.domain.plain_values import format_count
from replicator.ports.telemetry import Pace

STYLE = """
:root{color-scheme:light dark;font:15px/1.45 system-ui,sans-serif}
body{margin:0 auto;max-width:70rem;padding:1rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #8884}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.running{color:#087f3a}.suspended{color:#c22}.retrying,.paused,.catching_up{color:#a60}
.wide{overflow-x:auto}
@media (prefers-color-scheme:dark){.running{color:#5d9}.suspended{color:#f88}.retrying,.paused,.catching_up{color:#fc6}}
"""
NUMBERS = ("lag_records", "lag_seconds", "applied", "rejected", "dead_letters")
COLUMNS = ("id", "table", "policy", "status", *NUMBERS, "error")


def render(status: Mapping[str, Any]) -> str:
    """The page for one status. It reloads itself every two seconds."""
    rows = "".join(_render_row(lane) for lane in status.get("lanes", ()))
    heads = "".join(f"<th{_cell_class(c)}>{c.replace('_', ' ')}</th>" for c in COLUMNS)
    name = escape(str(status.get("pipeline", "")))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<meta http-equiv=refresh content=2><title>replicator {name}</title><style>{STYLE}</style>"
        f"<h1>replicator: "
        f"{name}</h1>{_render_away(status)}{_render_losses(status)}{_render_rejects(status)}{_render_paces(status)}{_render_comparisons(status)}"
        f"<div class=wide><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        "<p><a href=/status.json>status.json</a> <a href=/metrics>metrics</a></p></html>"
    )


def _render_away(status: Mapping[str, Any]) -> str:
    """A line per unavailable source, per slow call of a source or sink, and for a slow call of the dead-letter store."""
    away = [source for source in status.get("sources", ()) if source.get("away_since")]
    said = [f"source {s['name']} is away since {s['away_since']}: {s['error']}" for s in away]
    calls = {lane["sink"]: lane["call"] for lane in status.get("lanes", ()) if lane.get("call")}
    said += [
        f"source {source['name']}: {source['call']['doing']}, since {source['call']['since']}"
        for source in status.get("sources", ())
        if source.get("call")
    ]
    said += [f"sink {sink}: {call['doing']}, since {call['since']}" for sink, call in calls.items()]
    if call := status.get("dead_letter_call"):
        said.append(f"dead-letter store: {call['doing']}, since {call['since']}: {call['error'] or 'no answer yet'}")
    return "".join(f"<p class=suspended>{escape(line)}</p>" for line in said)


def _render_losses(status: Mapping[str, Any]) -> str:
    """A line per source whose connector may lose rows."""
    found = [(source["name"], source["row_loss"]) for source in status.get("sources", ()) if source.get("row_loss")]
    lines = [f"source {name}: {loss['sentence']} {loss['next_step']}" for name, loss in found]
    return "".join(f"<p class=retrying>{escape(line)}</p>" for line in lines)


def _render_rejects(status: Mapping[str, Any]) -> str:
    """A line per kind of records rejected since the start, and per group of dead letters that no lane row shows."""
    lines = [
        f"source {one['source']}: {format_count(one['records'], 'record')} of table {one['table'] or '?'} "
        f"rejected since the start ({one['code']}, stage {one['stage']})"
        for one in status.get("rejects", ())
    ]
    shown = {lane["table"] for lane in status.get("lanes", ())}
    lines += [
        f"source {group['source']}: {format_count(group['open'], 'open dead letter')} of table {group['table'] or '?'}"
        for group in status.get("dead_letters") or ()
        if not group["lane"] and group["table"] not in shown - {""}
    ]
    return "".join(f"<p class=retrying>{escape(line)}</p>" for line in lines)


def _render_paces(status: Mapping[str, Any]) -> str:
    """A line per source whose stream runs in an engine."""
    paced = [source for source in status.get("sources", ()) if source.get("pace")]
    return "".join(f"<p>{escape(Pace(**source['pace']).to_text(source['name']))}</p>" for source in paced)


def _render_comparisons(status: Mapping[str, Any]) -> str:
    """A line per lane whose last comparison with its source found rows that differ, or failed."""
    lines = [
        f"lane {one['lane']}, compared {one['begun']}: {one['error'] or format_count(count, 'row') + ' different'}"
        for one in status.get("comparisons", ())
        if (count := one["missing"] + one["extra"] + one["different"]) or one["error"]
    ]
    return "".join(f"<p class=suspended>{escape(line)}</p>" for line in lines)


def _render_row(lane: Mapping[str, Any]) -> str:
    cells = "".join(f"<td{_cell_class(c)}>{_render_cell(lane, c)}</td>" for c in COLUMNS)
    return f'<tr class="{escape(str(lane.get("status", "")))}">{cells}</tr>'


def _cell_class(column: str) -> str:
    return " class=n" if column in NUMBERS else ""


def _render_cell(lane: Mapping[str, Any], column: str) -> str:
    value = lane.get(column, (lane.get("counts") or {}).get(column))
    if value is None:
        return ""
    return escape(f"{value:,}" if isinstance(value, int) else f"{value:.1f}" if isinstance(value, float) else str(value))
