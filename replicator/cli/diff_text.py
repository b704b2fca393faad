"""A comparison as text: a line per lane, a table of its first differences, and what to do about them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from replicator.domain.plain_values import format_count, to_json_value, to_printable

if TYPE_CHECKING:
    from replicator.domain.differences import LaneDiff, RowDifference

VALUE_WIDTH = 40
"""Characters of a value that a table shows."""
MAX_COLUMNS = 8
"""Columns of one row that a table shows."""
NO_ROW = "no row"
HEADINGS = ("key", "kind", "column", "expected", "actual", "reason")
REJECTED = ("reject", "dead letter")
"""Words of a reason that names a rejected record."""
LIST_DEAD_LETTERS = "replicator dlq list --state open"

Cells = tuple[str, str, str, str, str, str]


def format_outcome(diff: LaneDiff) -> str:
    """One line: if the lane is equal, how many rows were compared, where, and how long it took."""
    compared = f"{format_count(diff.rows, 'row')} {format_place(diff)}, {format_seconds(diff.seconds)}"
    return f"{escape_text(diff.lane)}: {format_verdict(diff)}{',' if diff.equal else ' of'} {compared}"


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


def format_place(diff: LaneDiff) -> str:
    """The point or points of the source's log, and the commit of the target."""
    first, last = map(escape_text, diff.position)
    place = f"at {first}" if first == last else f"at {first} to {last}"
    return f"{place} ({escape_text(diff.commit)})" if diff.commit else place


def format_time(text: str) -> str:
    """An ISO time, in seconds and with its zone."""
    try:
        return datetime.fromisoformat(text).isoformat(sep=" ", timespec="seconds")
    except ValueError:
        return escape_text(text)


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
    lines += [f"  {escape_text(sentence)}" for sentence in sentences]
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
    rows = [cells for one in differences for cells in _list_cells(one)]
    # Without a reason for any row, the column would be empty.
    used = [at for at in range(len(HEADINGS)) if HEADINGS[at] != "reason" or any(row[at] for row in rows)]
    table = _format_table([[row[at] for at in used] for row in (HEADINGS, *rows)])
    if max(map(_count_cells, table)) <= width:
        return table
    return [line for one in differences for line in _format_block(one)]


def _list_cells(one: RowDifference) -> Iterator[Cells]:
    """The lines of a row. Key, kind and reason are in the first one only."""
    key = format_key(one.key, VALUE_WIDTH)
    for at, (column, expected, actual) in enumerate(_list_columns(one)):
        if at:
            yield "", "", column, expected, actual, ""
        else:
            yield key, one.kind, column, expected, actual, escape_text(one.reason)


def _list_columns(one: RowDifference) -> Iterator[tuple[str, str, str]]:
    """Column, expected and actual value. A row that one side does not have is one entry."""
    if one.kind != "different":
        at = 0 if one.kind == "missing" else 1
        row = _format_row({name: pair[at] for name, pair in one.columns.items() if name not in one.key})
        yield ("", row, NO_ROW) if one.kind == "missing" else ("", NO_ROW, row)
        return
    for name, (expected, actual) in islice(one.columns.items(), MAX_COLUMNS):
        left, right = format_pair(expected, actual, VALUE_WIDTH)
        yield escape_text(name), str(left), str(right)
    if len(one.columns) > MAX_COLUMNS:
        yield f"and {len(one.columns) - MAX_COLUMNS:,} more", "", ""
    elif not one.columns:
        yield "", "", ""


def _format_row(row: dict[str, object]) -> str:
    """The first values of a row, in the width of one value."""
    text = ", ".join(f"{escape_text(name)}={format_value(value, VALUE_WIDTH)}" for name, value in row.items())
    return text if len(text) <= VALUE_WIDTH else f"{text[: VALUE_WIDTH - 2]} …"


def _format_block(one: RowDifference) -> Iterator[str]:
    yield f"{format_key(one.key, VALUE_WIDTH)}  {one.kind}"
    for column, expected, actual in _list_columns(one):
        yield f"  {column}" if column else "  row"
        yield from (f"    {side} {text}" for side, text in (("expected", expected), ("actual  ", actual)) if text)
    if one.reason:
        yield f"  reason: {escape_text(one.reason)}"


def _format_table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(_count_cells, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _count_cells(text))


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
        parts = text[self.begin : middle], text[middle:after], text[after:end]
        head, changed, tail = (_escape(part, quoted=quoted, escaped=self.escaped) for part in parts)
        quote = "'" if quoted else ""
        return ShownValue(
            f"{CUT if self.begin else ''}{quote}{head}", changed, f"{tail}{quote}{CUT if end < len(text) else ''}"
        )


def format_value(value: Any, width: int) -> str:
    """A value in one line, with at most about `width` characters of it.

    Texts are in single quotes, so that blanks at the end show, and `NULL` is no text. A backslash, a line break and other
    invisible characters of a text are escaped.
    """
    shown, _ = format_pair(value, value, width)
    return str(shown)


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
        first, last = _count_common(left, right)
    # Both begin at the same character: otherwise two ends of other lengths could look alike.
    begin = max(0, min(first - CONTEXT, max(len(left), len(right)) - width))
    is_look_alike = left != right and normalize("NFKC", left) == normalize("NFKC", right)
    window = _Window(begin, begin + width, first, last, is_look_alike)
    return window.show(left, quoted=_is_text(expected)), window.show(right, quoted=_is_text(actual))


def format_key(key: Mapping[str, Any], width: int) -> str:
    """The key of a row, such as `id=1, tenant='north'`."""
    return ", ".join(f"{escape_text(name)}={format_value(value, width)}" for name, value in key.items())


def escape_text(text: str) -> str:
    """`text` in one line, without control characters."""
    return to_printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _to_text(value: Any) -> str:
    value = to_json_value(value)
    if value is None:
        return NULL
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _count_common(left: str, right: str) -> tuple[int, int]:
    """The lengths of the common beginning, and of the common end of the rest."""
    most = min(len(left), len(right))
    first = next((at for at in range(most) if left[at] != right[at]), most)
    last = next((at for at in range(most - first) if left[-1 - at] != right[-1 - at]), most - first)
    return first, last


def _escape(part: str, *, quoted: bool, escaped: bool) -> str:
    if escaped:
        return part.encode("unicode_escape").decode()
    return escape_text(part.replace("\\", "\\\\") if quoted else part)
