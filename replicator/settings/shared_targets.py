"""Patterns by which several source tables may come to one target, of which the first alone would have it."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.domain.patterns import GROUP, is_exact, is_glob, is_regex, list_groups
from replicator.domain.table import get_unqualified_name

from .config_view import ConfigView, EntryView, TableView
from .findings import Path, PathProblem, describe_path, quote_name
from .globs import describe_malformed

SHARED_TARGET_HINT = (
    "a target has the rows of one table. Give each table its own target, with a column that names the table "
    "({constant: ...} or {metadata: topic}), and read them together through a view"
)
"""The way to have several tables together."""


def check_shared_targets(config: ConfigView) -> Iterator[PathProblem]:
    """Warnings, because only the source knows if several such tables exist."""
    for table, entry in config.list_entries():
        match, template = table.match or "", entry.into or table.into or ""
        if config.get_kind(entry.sink) == "event_log" or is_exact(match) or describe_malformed(match):
            continue
        at = _get_path(table, entry)
        if not template and is_glob(match) and "." in match and is_exact(own := get_unqualified_name(match)):
            sentence = (
                f"{describe_path(at)}: tables of several schemas that 'match' matches would all have the "
                f"target {quote_name(own)}"
            )
            yield PathProblem(
                at, "shared_target", sentence, f"name one schema in 'match'; or {SHARED_TARGET_HINT}", severity="warning"
            )
        elif is_regex(match) and (left := _find_left_out_group(match, template)):
            sentence = f"{describe_path(at)}: tables that differ in group {left} of 'match' alone would have one target"
            step = f"use {left} in it, or write (?:...) for a group that does not matter; or {SHARED_TARGET_HINT}"
            yield PathProblem(at, "shared_target", sentence, step, severity="warning")


def _get_path(table: TableView, entry: EntryView) -> Path:
    return (*entry.path, "into") if entry.into else (*table.path, "into") if table.into else entry.path


def _find_left_out_group(match: str, template: str) -> str:
    """The first group that a template with groups leaves out."""
    groups = list_groups(match)
    used = {groups[name] for name in GROUP.findall(template) if name in groups}
    return next((f"{{{number}}}" for number in sorted({*groups.values()} - used)), "") if used else ""
