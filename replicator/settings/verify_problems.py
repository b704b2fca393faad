"""Checks `verify` against the rest of a config: each target needs something to be compared with."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.domain.policy.policy_names import CHANGE_POLICIES

from .config_view import NON_MIRROR_KINDS, ConfigView, EntryView, TableView, get_text, to_mapping
from .findings import PathProblem, describe_path, quote_name
from .formats import get_format
from .tables import NO_RETENTION

OFF_STEP = "write 'verify: {every: off}' there"


def check_verification(config: ConfigView) -> Iterator[PathProblem]:
    """Targets that could never be compared, and `verify` without targets."""
    for path, said in config.levels:
        inner = [entry for _, entry in config.list_entries() if path in (("defaults",), entry.path[:2])]
        if "verify" in said and inner and all(config.get_kind(entry.sink) in NON_MIRROR_KINDS for entry in inner):
            sentence = f"key 'verify' in {describe_path(path)} means nothing: none of its entries has a target with rows"
            yield PathProblem((*path, "verify"), "inapplicable", sentence, "remove it")
    for table, entry in config.list_entries():
        path, verify = entry.verify
        every = to_mapping(verify).get("every")
        if every in (None, NO_RETENTION) or config.get_kind(entry.sink) in (None, *NON_MIRROR_KINDS):
            continue
        if why := _describe_incomparable(config, table, entry):
            sentence = f"{describe_path(path)}: {describe_path(entry.path)} cannot be compared, because {why}"
            yield PathProblem(path, "inapplicable", sentence, f"{_suggest_step(table, entry)}; or {OFF_STEP}")


def _describe_incomparable(config: ConfigView, table: TableView, entry: EntryView) -> str:
    """Why the target cannot be compared; empty if it can, or if the source is not known."""
    source = (config.sources or {}).get(table.source or "")
    if source is None or any(config.get_kind(one.sink) == "event_log" for one in table.to or ()):
        return ""
    if entry.policy in CHANGE_POLICIES:
        return f"the policy {quote_name(entry.policy)} is compared with the event log of the table, which has none"
    has_rows = get_format(get_text(source, "format")).has_backfills and "database" in source
    return "" if has_rows else f"source {quote_name(table.source)} has no 'database', and the table has no event log"


def _suggest_step(table: TableView, entry: EntryView) -> str:
    own = f"add an entry with a sink of 'kind: event_log' to 'to' of {describe_path(table.path)}"
    return own if entry.policy in CHANGE_POLICIES else f"add 'database' to the source, or {own}"
