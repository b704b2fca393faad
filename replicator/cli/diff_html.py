"""A comparison as one self-contained HTML document: no script, all values escaped, readable at any width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from replicator.domain.plain_values import format_count, to_printable

from .diff_text import (
    NO_ROW,
    ShownValue,
    escape_text,
    format_key,
    format_pair,
    format_seconds,
    format_time,
    format_value,
    format_verdict,
    list_next_steps,
    summarize,
)

if TYPE_CHECKING:
    from replicator.domain.differences import LaneDiff, RowDifference

VALUE_WIDTH = 400
"""Characters of a value that the document shows."""
MAX_COLUMNS = 100
"""Columns of one row that the document shows."""
STYLE = """
:root{color-scheme:light dark;font:15px/1.45 system-ui,sans-serif;--good:#087f3a;--bad:#c22;--line:#8884;--soft:#8881;
--old:#f5b5b5;--new:#b4e5c0;--faint:#666}
body{margin:0 auto;max-width:70rem;padding:1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:0}
section{border:1px solid var(--line);border-radius:.5rem;margin:1rem 0;padding:1rem}
.equal{color:var(--good)}.differs{color:var(--bad)}
.verdict{font-weight:600;margin:.2rem 0 .8rem}
dl{display:grid;gap:.15rem 1rem;grid-template-columns:max-content 1fr;margin:.5rem 0}
dt{color:var(--faint)}dd{margin:0}
code,td{font-family:ui-monospace,monospace;font-size:.9em}
article{background:var(--soft);border-radius:.4rem;margin:.7rem 0;padding:.6rem .8rem}
h3{font-size:1rem;margin:0 0 .3rem}h3 small{color:var(--faint);font-weight:400;margin-left:.6rem}
table{border-collapse:collapse;table-layout:fixed;width:100%}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem .3rem 0;text-align:left;vertical-align:top}
th{color:var(--faint);font-weight:400}th:first-child{width:22%}
tr:last-child td{border-bottom:0}
td{white-space:pre-wrap}
mark{border-radius:.2em;color:inherit}
td.expected mark{background:var(--new)}td.actual mark{background:var(--old)}
i{color:var(--faint)}
.overview{table-layout:auto}.overview td{font:inherit}.overview th:first-child{width:auto}
.n{font-variant-numeric:tabular-nums;text-align:right}
a{color:inherit}
@media (prefers-color-scheme:dark){:root{--good:#5d9;--bad:#f88;--old:#703030;--new:#1f5a34;--faint:#aaa}}
@media (max-width:40rem){
dl{grid-template-columns:1fr}dd{margin:0 0 .4rem}
.values thead{display:none}.values tr,.values td{display:block}.values td{border:0;padding:.1rem 0}
.values tr{border-bottom:1px solid var(--line);padding:.3rem 0}.values tr:last-child{border:0}
.values td.column{color:var(--faint);font-family:inherit}
.values td[data-side]::before{color:var(--faint);content:attr(data-side) ' ';font-family:system-ui,sans-serif}
.overview thead{display:none}.overview tr{display:block;padding:.3rem 0;border-bottom:1px solid var(--line)}
.overview td{display:inline-block;border:0;padding:0 .8rem 0 0}
.overview td[data-side]::before{color:var(--faint);content:attr(data-side) ' '}
.overview td:first-child{display:block;font-weight:600}
}
@media print{section{break-inside:avoid-page}}
"""


def render_report(diffs: Sequence[LaneDiff], run: Mapping[str, str]) -> str:
    """The document about these lanes. `run`: how the comparison was run, by names for people."""
    title = f"Comparison of {run['pipeline']}" if run.get("pipeline") else "Comparison"
    verdict = "equal" if all(diff.equal for diff in diffs) else "differs"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{_to_html(title)}</title><style>{STYLE}</style>"
        f"<h1>{_to_html(title)}</h1><p class='verdict {verdict}'>{_to_html(summarize(diffs))}</p>"
        f"{_render_overview(diffs)}{''.join(_render_lane(at, diff) for at, diff in enumerate(diffs, 1))}"
        f"<section><h2>How it was run</h2>{_render_facts(run)}"
        "<p>Texts are in single quotes. NULL without quotes is no value. Values are masked as the config says.</p>"
        "</section></html>\n"
    )


def _render_overview(diffs: Sequence[LaneDiff]) -> str:
    heads = "".join(f"<th{' class=n' if at else ''}>{name}" for at, name in enumerate(("lane", *COUNTS)))
    rows = "".join(
        f"<tr><td><a class={_get_class(diff)} href='#lane-{at}'>{_to_html(diff.lane)}</a>"
        + "".join(f"<td class=n data-side={name}>{getattr(diff, name):,}" for name in COUNTS)
        for at, diff in enumerate(diffs, 1)
    )
    return f"<table class=overview><thead><tr>{heads}<tbody>{rows}</table>"


COUNTS = ("rows", "missing", "extra", "different")


def _render_lane(number: int, diff: LaneDiff) -> str:
    """A section about one lane."""
    first, last = diff.position
    facts = {
        "source table": diff.table,
        "compared with": "the event log" if diff.against == "log" else "the source",
        "point of the log": first if first == last else f"{first} (first rows) to {last} (last rows)",
        "commit of the target": diff.commit,
        "rows compared": f"{diff.rows:,}",
        "begun": f"{format_time(diff.begun)}, took {format_seconds(diff.seconds)}",
    }
    return (
        f"<section id=lane-{number}><h2>{_to_html(diff.lane)}</h2>"
        f"<p class='verdict {_get_class(diff)}'>{format_verdict(diff)}</p>{_render_facts(facts)}"
        f"{''.join(map(_render_difference, diff.differences))}{_render_hidden(diff)}"
        f"{_render_list('Not compared', diff.not_compared)}{_render_list('Next step', list_next_steps(diff))}</section>"
    )


def _render_facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{_to_html(name)}<dd>{_to_html(value)}" for name, value in facts.items() if value)
    return f"<dl>{rows}</dl>"


def _render_list(heading: str, sentences: Sequence[str]) -> str:
    """Sentences, in which text in backquotes is code."""
    if not sentences:
        return ""
    items = "".join(f"<li>{_render_sentence(sentence)}" for sentence in sentences)
    return f"<h3>{heading}</h3><ul>{items}</ul>"


def _render_sentence(sentence: str) -> str:
    parts = _to_html(sentence).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _render_hidden(diff: LaneDiff) -> str:
    hidden = diff.missing + diff.extra + diff.different - len(diff.differences)
    return f"<p>{format_count(hidden, 'more row')} {'differs' if hidden == 1 else 'differ'}.</p>" if hidden > 0 else ""


def _render_difference(one: RowDifference) -> str:
    """One row: its columns with both values side by side."""
    reason = f"<p>{_render_sentence(one.reason)}</p>" if one.reason else ""
    more = len(one.columns) - MAX_COLUMNS
    rest = f"<p>and {format_count(more, 'more column')}</p>" if more > 0 else ""
    return (
        f"<article><h3><code>{_to_html(format_key(one.key, VALUE_WIDTH))}</code><small>{one.kind}</small></h3>{reason}"
        f"<table class=values><thead><tr><th>column<th>expected<th>actual<tbody>{''.join(_render_columns(one))}</table>"
        f"{rest}</article>"
    )


def _render_columns(one: RowDifference) -> Iterator[str]:
    for name, (expected, actual) in islice(one.columns.items(), MAX_COLUMNS):
        if one.kind == "different":
            left, right = map(_render_value, format_pair(expected, actual, VALUE_WIDTH))
        elif one.kind == "missing":
            left, right = _to_html(format_value(expected, VALUE_WIDTH)), f"<i>{NO_ROW}</i>"
        else:
            left, right = f"<i>{NO_ROW}</i>", _to_html(format_value(actual, VALUE_WIDTH))
        yield (
            f"<tr><td class=column>{_to_html(escape_text(name))}"
            f"<td class=expected data-side=expected>{left}<td class=actual data-side=actual>{right}"
        )


def _render_value(value: ShownValue) -> str:
    changed = f"<mark>{_to_html(value.changed)}</mark>" if value.changed else ""
    return f"{_to_html(value.before)}{changed}{_to_html(value.after)}"


def _get_class(diff: LaneDiff) -> str:
    return "equal" if diff.equal else "differs"


def _to_html(text: str) -> str:
    return escape(to_printable(text))
