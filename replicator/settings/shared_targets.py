"""Patterns by which several source tables may come to one target, of which the first alone would have it."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.domain.patterns import GROUP, groups_of, is_exact, is_glob, is_regex

from .findings import Path, Problem, place, quoted
from .globs import malformed
from .lanes import own_name
from .views import EntryView, TableView, View

TOGETHER = (
    "a target has the rows of one table: give each a target of its own, with a column {constant: ...} or {metadata: topic} "
    "that tells them apart, and read them together through a view"
)
"""The way to have several tables together."""


def shared_target_problems(config: View) -> Iterator[Problem]:
    """Warnings: whether there are several such tables only the source knows."""
    for table, entry in config.entries():
        match, template = table.match or "", entry.into or table.into or ""
        if config.kind(entry.sink) == "event_log" or is_exact(match) or malformed(match):
            continue
        at = _at(table, entry)
        if not template and is_glob(match) and "." in match and is_exact(own := own_name(match)):
            sentence = f"{place(at)}: tables of several schemas that 'match' matches would all have the target {quoted(own)}"
            yield Problem(at, "shared_target", sentence, f"name one schema in 'match'; or {TOGETHER}", severity="warning")
        elif is_regex(match) and (left := _left_out(match, template)):
            sentence = f"{place(at)}: tables that differ in group {left} of 'match' alone would have one target"
            step = f"take {left} into it, or write (?:...) for a group that tells nothing apart; or {TOGETHER}"
            yield Problem(at, "shared_target", sentence, step, severity="warning")


def _at(table: TableView, entry: EntryView) -> Path:
    return (*entry.path, "into") if entry.into else (*table.path, "into") if table.into else entry.path


def _left_out(match: str, template: str) -> str:
    """The first group that a template with groups leaves out."""
    groups = groups_of(match)
    used = {groups[name] for name in GROUP.findall(template) if name in groups}
    return next((f"{{{number}}}" for number in sorted({*groups.values()} - used)), "") if used else ""
