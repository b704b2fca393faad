"""A comparison as text, and as one self-contained HTML document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from replicator.domain.plain_values import format_count, to_json_value, to_printable

from .session import to_cell

if TYPE_CHECKING:
    from replicator.domain.differences import LaneDiff, RowDifference

# A comparison as text: a line per lane, a table of its first differences, and what to do about them.

VALUE_WIDTH = 40
"""Characters of a value that a table shows."""
MAX_COLUMNS = 8
"""Columns of one row that a table shows."""
NO_ROW = "no row"
HEADINGS = ("key", "kind", "column", "expected", "actual", "reason")
REJECTED = ("reject", "dead letter")
"""Words of a reason that names a rejected record."""
LIST_DEAD_LETTERS = "replicator dlq list --state open"


def format_outcome(diff: LaneDiff) -> str:
    """One line: if the lane is equal, how many rows were compared, where, and how long it took."""
    first, last = map(to_cell, diff.position)
    points = f"at {first}" if first == last else f"at {first} to {last}"
    commit = f" ({to_cell(diff.commit)})" if diff.commit else ""
    compared = f"{format_count(diff.rows, 'row')} {points}{commit}, {format_seconds(diff.seconds)}"
    return f"{to_cell(diff.lane)}: {format_verdict(diff)}{',' if diff.equal else ' of'} {compared}"


def format_verdict(diff: LaneDiff) -> str:
    """The number of rows that differ, and of each kind; `equal` without them."""
    return format_counts({"missing": diff.missing, "extra": diff.extra, "different": diff.different})


def format_counts(counts: Mapping[str, int]) -> str:
    """The same, from the number of rows of each kind."""
    if not any(counts.values()):
        return "equal"
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in counts.items() if number)
    total = sum(counts.values())
    return f"{format_count(total, 'row')} {'differs' if total == 1 else 'differ'} ({kinds})"


def format_time(text: str) -> str:
    """An ISO time, in seconds and with its zone."""
    try:
        return datetime.fromisoformat(text).isoformat(sep=" ", timespec="seconds")
    except ValueError:
        return to_cell(text)


def format_seconds(seconds: float) -> str:
    """A duration such as `3.2 s` or `1 h 2 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def format_age(text: str, now: datetime | None = None) -> str:
    """How long ago an ISO time was, such as `3 h ago`."""
    seconds = max(0.0, ((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds())
    sizes = (("days", 172_800, 86_400), ("h", 3600, 3600), ("min", 60, 60), ("s", 0, 1))
    return next(f"{int(seconds // size):,} {unit} ago" for unit, least, size in sizes if seconds >= least)


def summarize(diffs: Sequence[LaneDiff]) -> str:
    """One sentence about all lanes."""
    if not diffs:
        return "no lane compared"
    wrong = [diff for diff in diffs if not diff.equal]
    if not wrong:
        return f"{format_count(len(diffs), 'lane')} compared, all equal" if len(diffs) != 1 else "1 lane compared, equal"
    rows = sum(diff.missing + diff.extra + diff.different for diff in wrong)
    return (
        f"{format_count(len(diffs), 'lane')} compared, {format_count(rows, 'row')} "
        f"{'differs' if rows == 1 else 'differ'} in {format_count(len(wrong), 'lane')}"
    )


def format_lane(diff: LaneDiff, width: int) -> list[str]:
    """All lines about a lane: its outcome, its first differences, what was not compared, and the next step."""
    lines = [format_outcome(diff)]
    if diff.differences:
        lines += ["", *(f"  {line}" for line in format_differences(diff.differences, width - 2))]
    hidden = diff.missing + diff.extra + diff.different - len(diff.differences)
    if hidden > 0:
        more = "more " if diff.differences else ""
        lines.append(f"  {format_count(hidden, f'{more}row')} {'differs' if hidden == 1 else 'differ'}: --show N prints N.")
    sentences = [*diff.not_compared, *list_next_steps(diff)]
    lines += [""] if diff.differences and sentences else []
    lines += [f"  {to_cell(sentence)}" for sentence in sentences]
    return lines


def list_next_steps(diff: LaneDiff) -> list[str]:
    """Sentences with commands for the rows that differ."""
    if diff.equal:
        return []
    steps = []
    if any(names_rejected_record(one) for one in diff.differences):
        steps.append(f"Records were rejected. `{LIST_DEAD_LETTERS}` shows the reasons, and how to retry them.")
    if sum(bool(one.reason) for one in diff.differences) == diff.missing + diff.extra + diff.different:
        # A repair would not change what has these reasons.
        return steps
    if diff.against == "log":
        steps.append(f"`replicator replay {diff.table}` builds the target again from the event log.")
    else:
        sink = diff.lane.partition(".")[0]
        steps.append(f"`replicator diff {diff.table} --sink {sink} --repair` writes the rows of the source into the target.")
    return steps


def names_rejected_record(difference: RowDifference) -> bool:
    """True if the reason of a difference is a rejected record."""
    return any(word in difference.reason.lower() for word in REJECTED)


def format_differences(differences: Sequence[RowDifference], width: int) -> list[str]:
    """Differences as a table; if it is wider than `width`, a block for each row."""
    rows = [HEADINGS]
    for one in differences:
        first, *others = _list_columns(one)
        rows.append((format_key(one.key, VALUE_WIDTH), one.kind, *first, to_cell(one.reason)))
        rows += [("", "", *cells, "") for cells in others]
    # Without a reason for any row, the column would be empty.
    columns = [cells for cells in zip(*rows, strict=True) if cells[0] != "reason" or any(cells[1:])]
    widths = [max(map(_count_cells, cells)) for cells in columns]
    lines = []
    for row in zip(*columns, strict=True):
        padded = (cell + " " * (width - _count_cells(cell)) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    if max(map(_count_cells, lines)) <= width:
        return lines
    lines = []
    for one in differences:
        lines.append(f"{format_key(one.key, VALUE_WIDTH)}  {one.kind}")
        for column, expected, actual in _list_columns(one):
            lines.append(f"  {column}" if column else "  row")
            lines += [f"    {side} {text}" for side, text in (("expected", expected), ("actual  ", actual)) if text]
        if one.reason:
            lines.append(f"  reason: {to_cell(one.reason)}")
    return lines


def _list_columns(one: RowDifference) -> Iterator[tuple[str, str, str]]:
    """Column, expected and actual value. A row that one side does not have is one entry, in the width of one value."""
    if one.kind != "different":
        at = 0 if one.kind == "missing" else 1
        row = format_key({name: pair[at] for name, pair in one.columns.items() if name not in one.key}, VALUE_WIDTH)
        row = row if len(row) <= VALUE_WIDTH else f"{row[: VALUE_WIDTH - 2]} …"
        yield ("", row, NO_ROW) if one.kind == "missing" else ("", NO_ROW, row)
        return
    for name, (expected, actual) in islice(one.columns.items(), MAX_COLUMNS):
        left, right = format_pair(expected, actual, VALUE_WIDTH)
        yield to_cell(name), str(left), str(right)
    if len(one.columns) > MAX_COLUMNS:
        yield f"and {len(one.columns) - MAX_COLUMNS:,} more", "", ""
    elif not one.columns:
        yield "", "", ""


def _count_cells(text: str) -> int:
    """The width of a text on a terminal, where some characters are two cells wide."""
    from rich.cells import cell_len

    return cell_len(text)


# Two values side by side, as text that shows how they differ.

NULL = "NULL"
CONTEXT = 10
"""Characters of a long value that are shown in front of the difference."""
CUT = "…"
"""Stands outside the quotes, so that it is no part of the value."""


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value as text, in three parts. Only the middle one, `changed`, differs from the other value."""

    before: str
    changed: str
    after: str

    def __str__(self) -> str:
        return self.before + self.changed + self.after


@dataclass(frozen=True, slots=True)
class _Window:
    """The characters from `begin` to `end`. All but the `first` and the `last` ones of a text differ."""

    begin: int
    end: int
    first: int
    last: int
    escaped: bool

    def show(self, text: str, *, quoted: bool) -> ShownValue:
        end = min(len(text), self.end)
        middle = min(self.first, end)
        after = max(middle, min(len(text) - self.last, end))
        parts = [text[self.begin : middle], text[middle:after], text[after:end]]
        if self.escaped:
            parts = [part.encode("unicode_escape").decode() for part in parts]
        else:
            parts = [to_cell(part.replace("\\", "\\\\") if quoted else part) for part in parts]
        head, changed, tail = parts
        quote = "'" if quoted else ""
        return ShownValue(
            f"{CUT if self.begin else ''}{quote}{head}", changed, f"{tail}{quote}{CUT if end < len(text) else ''}"
        )


def format_value(value: Any, width: int) -> str:
    """A value in one line, with at most about `width` characters of it.

    Texts are in single quotes, so that blanks at the end show, and `NULL` is no text. A backslash, a line break and other
    invisible characters of a text are escaped.
    """
    text, _ = format_pair(value, value, width)
    return str(text)


def format_pair(expected: Any, actual: Any, width: int) -> tuple[ShownValue, ShownValue]:
    """Two values as in `format_value`. Long values are cut to the part with the first difference.

    Texts that look alike, such as two forms of an accent, are escaped.
    """
    left, right = _to_text(expected), _to_text(actual)
    if left == right and _is_text(expected) == _is_text(actual):
        first, last = 0, len(left)
    elif _is_text(expected) != _is_text(actual) or isinstance(expected, bool):
        # A number and its digits as text differ as a whole, and so do true and false.
        first = last = 0
    else:
        # The common beginning, and the common end of the rest.
        most = min(len(left), len(right))
        first = next((at for at in range(most) if left[at] != right[at]), most)
        last = next((at for at in range(most - first) if left[-1 - at] != right[-1 - at]), most - first)
    # Both begin at the same character: otherwise two ends of other lengths could look alike.
    begin = max(0, min(first - CONTEXT, max(len(left), len(right)) - width))
    is_look_alike = left != right and normalize("NFKC", left) == normalize("NFKC", right)
    window = _Window(begin, begin + width, first, last, is_look_alike)
    return window.show(left, quoted=_is_text(expected)), window.show(right, quoted=_is_text(actual))


def format_key(key: Mapping[str, Any], width: int) -> str:
    """The key of a row, such as `id=1, tenant='north'`."""
    return ", ".join(f"{to_cell(name)}={format_value(value, width)}" for name, value in key.items())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _to_text(value: Any) -> str:
    value = to_json_value(value)
    if value is None:
        return NULL
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


# A comparison as one self-contained HTML document: no script, all values escaped, readable at any width.

DOCUMENT_VALUE_WIDTH = 400
"""Characters of a value that the document shows."""
DOCUMENT_COLUMNS = 100
"""Columns of one row that the document shows."""
COUNTS = ("rows", "missing", "extra", "different")
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
    heads = "".join(f"<th{' class=n' if at else ''}>{name}" for at, name in enumerate(("lane", *COUNTS)))
    rows = "".join(
        f"<tr><td><a class={_get_class(diff)} href='#lane-{at}'>{_to_html(diff.lane)}</a>"
        + "".join(f"<td class=n data-side={name}>{getattr(diff, name):,}" for name in COUNTS)
        for at, diff in enumerate(diffs, 1)
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{_to_html(title)}</title><style>{STYLE}</style>"
        f"<h1>{_to_html(title)}</h1><p class='verdict {verdict}'>{_to_html(summarize(diffs))}</p>"
        f"<table class=overview><thead><tr>{heads}<tbody>{rows}</table>"
        f"{''.join(_render_lane(at, diff) for at, diff in enumerate(diffs, 1))}"
        f"<section><h2>How it was run</h2>{_render_facts(run)}"
        "<p>Texts are in single quotes. NULL without quotes is no value. Values are masked as the config says.</p>"
        "</section></html>\n"
    )


def _render_lane(number: int, diff: LaneDiff) -> str:
    """A section about one lane."""
    first, last = diff.position
    hidden = diff.missing + diff.extra + diff.different - len(diff.differences)
    rest = f"<p>{format_count(hidden, 'more row')} {'differs' if hidden == 1 else 'differ'}.</p>" if hidden > 0 else ""
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
        f"{''.join(map(_render_difference, diff.differences))}{rest}"
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


def _render_difference(one: RowDifference) -> str:
    """One row: its columns with both values side by side."""
    reason = f"<p>{_render_sentence(one.reason)}</p>" if one.reason else ""
    more = len(one.columns) - DOCUMENT_COLUMNS
    rest = f"<p>and {format_count(more, 'more column')}</p>" if more > 0 else ""
    key = _to_html(format_key(one.key, DOCUMENT_VALUE_WIDTH))
    rows = []
    for name, (expected, actual) in islice(one.columns.items(), DOCUMENT_COLUMNS):
        if one.kind == "different":
            left, right = map(_render_value, format_pair(expected, actual, DOCUMENT_VALUE_WIDTH))
        elif one.kind == "missing":
            left, right = _to_html(format_value(expected, DOCUMENT_VALUE_WIDTH)), f"<i>{NO_ROW}</i>"
        else:
            left, right = f"<i>{NO_ROW}</i>", _to_html(format_value(actual, DOCUMENT_VALUE_WIDTH))
        rows.append(
            f"<tr><td class=column>{_to_html(to_cell(name))}"
            f"<td class=expected data-side=expected>{left}<td class=actual data-side=actual>{right}"
        )
    return (
        f"<article><h3><code>{key}</code><small>{one.kind}</small></h3>{reason}"
        f"<table class=values><thead><tr><th>column<th>expected<th>actual<tbody>{''.join(rows)}</table>"
        f"{rest}</article>"
    )


def _render_value(value: ShownValue) -> str:
    changed = f"<mark>{_to_html(value.changed)}</mark>" if value.changed else ""
    return f"{_to_html(value.before)}{changed}{_to_html(value.after)}"


def _get_class(diff: LaneDiff) -> str:
    return "equal" if diff.equal else "differs"


def _to_html(text: str) -> str:
    return escape(to_printable(text))
