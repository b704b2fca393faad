"""Checks the parts of a config against each other: references, targets, matches. Offline, and all at once."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from replicator.domain.errors import suggest_name
from replicator.domain.events import EVENT_STORE
from replicator.domain.patterns import (
    GROUP,
    TopicFilter,
    count_literals,
    describe_malformed,
    find_unknown_groups,
    has_overlap,
    is_exact,
    is_glob,
    is_regex,
    list_groups,
)
from replicator.domain.policy import CHANGE_POLICIES, CURRENT_ROW_POLICIES, POLICY_NAMES, VERSION_POLICIES
from replicator.domain.table import get_unqualified_name
from replicator.ports.adapter_options import LogSinkOptions
from replicator.ports.options import NO_RETENTION

from .adapter_models import SINKS, get_format
from .config_view import ConfigView, EntryView, TableView, get_text, to_mapping
from .document import Origin, Path, PathProblem, describe_parent, describe_path, make_idle_key, quote_name
from .projections import check_projections
from .source_checks import check_source_options
from .tables import EXCLUSIVE_KEYS, TABLE_OPTIONS, EntrySettings
from .target_checks import check_event_store, check_target_options, is_event_store
from .transform_checks import check_columns, check_row_transforms

FindOrigin = Callable[[Path], Origin]
"""Gives the origin of a path, to point at the other one of two."""

POLICIES_OF: dict[str, frozenset[str]] = {
    "deletes": CURRENT_ROW_POLICIES | VERSION_POLICIES,
    "track_history_column_list": VERSION_POLICIES,
    "track_history_except_column_list": VERSION_POLICIES,
    "ignore_null_updates": CURRENT_ROW_POLICIES,
    "ignore_null_updates_column_list": CURRENT_ROW_POLICIES,
    "ignore_null_updates_except_column_list": CURRENT_ROW_POLICIES,
    "partial_updates": CURRENT_ROW_POLICIES,
    "tombstone_retention": CURRENT_ROW_POLICIES,
    "watermark": CHANGE_POLICIES,
}
"""Keys of an entry that mean something under some policies only."""

SINGLE_POLICY_KEYS = frozenset(
    {
        "watermark",
        "ignore_null_updates",
        "ignore_null_updates_column_list",
        "ignore_null_updates_except_column_list",
        "partial_updates",
        "tombstone_retention",
    }
)
"""The keys that mean nothing in a table or in `defaults` if no entry has the policy."""

KNOWN_POLICIES = frozenset(POLICY_NAMES)
ENTRY_KEYS = frozenset(info.alias or name for name, info in EntrySettings.model_fields.items())
EVENT_STORE_KEYS = frozenset({"sink", "into", "where"})
"""The keys of an entry through which events of an outbox go to the event store."""
TABLE_KEYS = ("keys", "tombstones", "out_of_range")
"""Keys that say how the records of a table are read, which is done once for all its lanes."""


def check_config(config: ConfigView, where: FindOrigin) -> Iterator[PathProblem]:
    """Everything wrong between the parts of `config`."""
    yield from _check_parts(config)
    yield from _check_idle_keys(config)
    yield from check_target_options(config)
    yield from check_row_transforms(config)
    yield from check_columns(config)
    yield from check_source_options(config)
    yield from check_event_store(config)
    yield from check_projections(config)
    yield from _check_agreement(config, where)
    yield from _check_matches(config, where)
    yield from _check_targets(config, where)
    yield from check_shared_targets(config)
    yield from _check_sinks(config, where)
    yield from check_checkpoints(config)
    yield from check_verification(config)
    yield from _check_dead_letter_loop(config)
    yield from _check_unused(config)


def _check_parts(config: ConfigView) -> Iterator[PathProblem]:
    """Empty parts, names of sources and sinks that do not exist, and keys that exclude each other."""
    for name in config.empty:
        yield PathProblem((name,), "empty", f"{name} is empty", "name at least one")
    references = []
    for table in config.tables:
        if table.to is not None and not table.to:
            at = (*table.path, "to")
            yield PathProblem(at, "empty", f"{describe_path(at)} is empty", "name at least one sink")
        references.append(((*table.path, "source"), "source", table.source, config.sources))
    for _, entry in config.list_entries():
        sinks = None if is_event_store(config, entry.sink) else config.sinks
        references.append(((*entry.path, "sink"), "sink", entry.sink, sinks))
    for path, noun, reference, names in references:
        if reference is not None and names is not None and reference not in names:
            hint = suggest_name(reference, names) or f"known: {', '.join(names) or 'none'}"
            sentence = f"unknown {noun} {quote_name(reference)} {describe_parent(path[:-1])}"
            yield PathProblem(path, f"unknown_{noun}", sentence, hint)
    for level in config.levels:
        for one, other in EXCLUSIVE_KEYS:
            if {one, other} <= level.raw.keys():
                sentence = f"{describe_path(level.path)} has both '{one}' and '{other}'"
                yield PathProblem((*level.path, other), "contradiction", sentence, "keep one")


def _check_idle_keys(config: ConfigView) -> Iterator[PathProblem]:
    """Find keys of entries that their targets do not have, and keys of a table or of the defaults that no entry uses."""
    for _, entry in config.list_entries():
        for key in sorted(entry.raw.keys() & ENTRY_KEYS - {"sink"}):
            if why := _describe_idle_key(config, entry, key):
                yield make_idle_key(entry.path, key, *why)
    for level in config.levels:
        entries = [entry for _, entry in config.list_entries() if level.path in (("defaults",), entry.path[:2])]
        for key in sorted(level.raw) if entries else ():
            if key in SINGLE_POLICY_KEYS:
                uses = [config.is_mirror(e.sink) and e.policy not in KNOWN_POLICIES - POLICIES_OF[key] for e in entries]
                wanted = f"has the policy {' or '.join(map(quote_name, sorted(POLICIES_OF[key])))}"
            elif key in TABLE_OPTIONS:
                # Unknown sinks count as those that have options: other checks report them.
                uses = [config.get_sink_model(e.sink).has_table_options or key in e.raw for e in entries]
                wanted = "goes to a Delta sink"
            elif key == "verify":
                uses, wanted = [config.is_mirror(e.sink) for e in entries], "has a target with rows"
            else:
                continue
            if not any(uses):
                yield make_idle_key(level.path, key, f": none of its entries {wanted}")


def _describe_idle_key(config: ConfigView, entry: EntryView, key: str) -> tuple[str, ...]:
    """Why the target of an entry has no use for its key, and perhaps a step; empty if it has."""
    kind = config.get_kind(entry.sink)
    if config.is_event_log(entry.sink):
        return (" for an event log",)
    if is_event_store(config, entry.sink) and key not in EVENT_STORE_KEYS:
        return (" for the store of events: it keeps events as they are",)
    if kind == EVENT_STORE:
        return ()
    if key in TABLE_OPTIONS and not config.get_sink_model(entry.sink).has_table_options:
        return f" for a sink of kind {quote_name(kind)}", "remove it; it is an option of Delta tables"
    if entry.policy in KNOWN_POLICIES - POLICIES_OF.get(key, KNOWN_POLICIES):
        return (f" under policy {quote_name(entry.policy)}",)
    return ()


def _check_agreement(config: ConfigView, where: FindOrigin) -> Iterator[PathProblem]:
    """A table's records are read once for all its lanes, so these cannot differ in what decides how."""
    for table in config.tables:
        first: EntryView | None = None
        for entry in table.to or ():
            if config.is_event_log(entry.sink):
                continue
            first = first or entry
            for key in TABLE_KEYS:
                if entry.get_value(key) != first.get_value(key):
                    at = (*(entry if key in entry.raw else first).path, key)
                    other_place = f"{describe_path(first.path)} ({where(first.path)})"
                    sentence = f"{describe_path(entry.path)}: its '{key}' differ from those of {other_place}"
                    yield PathProblem(at, "different_keys", sentence, f"write '{key}' once, in {describe_path(table.path)}")


def _check_matches(config: ConfigView, where: FindOrigin) -> Iterator[PathProblem]:
    usable = [t for t in config.tables if t.match and not describe_malformed(t.match)]
    for one, other in combinations(usable, 2):
        if one.source != other.source:
            continue
        at = (*other.path, "match")
        first = where((*one.path, "match"))
        if one.match == other.match:
            yield PathProblem(
                at, "duplicate_match", f"{describe_path(at)}: {quote_name(other.match)} is there already, at {first}"
            )
            continue
        patterns = str(one.match), str(other.match)
        are_globs = all(map(is_glob, patterns)) and count_literals(patterns[0]) == count_literals(patterns[1])
        if are_globs and has_overlap(*patterns):
            both = f"{quote_name(other.match)} and {quote_name(one.match)} ({first})"
            sentence = f"{describe_path(at)}: {both} can match one table equally well"
            yield PathProblem(at, "tied_match", sentence, "make one of them more specific")
    # Warn of names without a schema if the format gives every table one.
    for table in usable:
        pattern = str(table.match)
        if not get_format(get_text(config.get_source(table), "format")).has_schema_names or is_regex(pattern):
            continue
        if not has_overlap(pattern, "*.*"):
            at = (*table.path, "match")
            sentence = (
                f"{describe_path(at)}: {quote_name(pattern)} matches no table, because the names of this "
                f"source are SCHEMA.TABLE"
            )
            yield PathProblem(at, "bare_match", sentence, f"write {quote_name('*.' + pattern)}", severity="warning")


def _check_targets(config: ConfigView, where: FindOrigin) -> Iterator[PathProblem]:
    seen: dict[tuple[str, str], Path] = {}
    for table, entry in config.list_entries():
        match, template = table.match, entry.into
        if match is None or entry.sink is None or (match and describe_malformed(match)):
            continue
        # Event logs, and globs whose tables have targets of their own, get a placeholder.
        if config.is_event_log(entry.sink):
            into = f"(log) {match} of {table.source}"
        else:
            own = get_unqualified_name(match) if is_exact(match) else f"(own) {match} of {table.source}"
            into = template or own
        if is_regex(match) and GROUP.search(template):
            at = entry.find("into")[0]
            for name in find_unknown_groups(template, match):
                wrong = (
                    "has a brace alone" if name == "{" else f"takes group {quote_name(name)}, which 'match' does not have"
                )
                groups = ", ".join(f"{{{group}}}" for group in list_groups(match)) or "none"
                yield PathProblem(at, "unknown_group", f"{describe_path(at)} {wrong}", f"groups: {groups}")
        elif not is_exact(match) and template:
            at = (*entry.path, "into")
            sentence = (
                f"{describe_path(entry.path)}: every table that 'match' matches would have the target {quote_name(into)}"
            )
            step = "leave 'into' out, name one table in 'match', or take {1} of a regular expression (^a_([0-9]+)$) into it"
            step = f"{step}; {SHARED_TARGET_HINT}"
            yield PathProblem(at, "same_target", sentence, step)
        elif (key := (entry.sink, into)) in seen:
            target = f"target {quote_name(into)} of sink {quote_name(entry.sink)}"
            sentence = f"{describe_path(entry.path)}: {target} is taken, at {where(seen[key])}"
            yield PathProblem(entry.path, "same_target", sentence, f"give one of them another 'into'; {SHARED_TARGET_HINT}")
        else:
            seen[key] = entry.path


def _check_sinks(config: ConfigView, where: FindOrigin) -> Iterator[PathProblem]:
    """Sinks for other engines, and two that write to one place: they would overwrite each other's positions."""
    seen: dict[tuple[str, ...], str] = {}
    for name, sink in (config.sinks or {}).items():
        engines = sink.get("engines")
        if isinstance(engines, list) and engines and config.engine not in engines:
            sentence = f"sink {quote_name(name)} is for other engines than {quote_name(config.engine)}"
            yield PathProblem(("sinks", name, "engines"), "engine", sentence, "change 'engine', or the sink's 'engines'")
        key = _get_location(sink.get("kind"), get_text(sink, "path"), get_text(sink, "dsn"), get_text(sink, "schema"))
        if key and key in seen:
            other = where(("sinks", seen[key]))
            sentence = f"sink {quote_name(name)} writes to the same place as sink {quote_name(seen[key])} ({other})"
            yield PathProblem(("sinks", name), "same_place", sentence, "use one sink for both")
        elif key:
            seen[key] = name
    key = _get_location("events", get_text(config.event_store, "path"), None, None)
    if key in seen:
        sentence = f"event_store writes to the same place as sink {quote_name(seen[key])} ({where(('sinks', seen[key]))})"
        yield PathProblem(("event_store",), "same_place", sentence, "give it a folder of its own")


def _get_location(kind: object, path: str | None, dsn: str | None, schema: str | None) -> tuple[str, ...] | None:
    if path:
        return ("path", posixpath.normpath(path.replace("s3a://", "s3://", 1)))
    key = SINKS[kind].list_keys().get("schema") if isinstance(kind, str) and kind in SINKS else None
    return (str(kind), dsn, (schema or str(key.default)) if key else "") if dsn else None


def _check_dead_letter_loop(config: ConfigView) -> Iterator[PathProblem]:
    """A source that reads the topic of the dead letters would reject what was rejected, for ever."""
    topic, servers = get_text(config.dead_letters, "topic"), _split_servers(config.dead_letters)
    for name, source in (config.sources or {}).items():
        patterns = source.get("topics")
        if topic is None or not servers & _split_servers(source) or not isinstance(patterns, list):
            continue
        for number, pattern in enumerate(patterns):
            try:
                is_read = isinstance(pattern, str) and TopicFilter([pattern])(topic)
            except re.error:
                continue
            if is_read:
                at = ("sources", name, "topics", number)
                sentence = f"{describe_path(at)} also reads {quote_name(topic)}, the topic of the dead letters"
                yield PathProblem(
                    at, "same_place", sentence, "name the topics more closely, or another one under 'dead_letters'"
                )


def _split_servers(settings: dict[str, Any]) -> set[str]:
    return {server.strip() for server in (get_text(settings, "bootstrap_servers") or "").split(",")} - {""}


def _check_unused(config: ConfigView) -> Iterator[PathProblem]:
    used = {entry.sink for _, entry in config.list_entries()}, {table.source for table in config.tables}
    used[0].update(get_text(projection, "sink") for projection in config.projections.values())
    for noun, configured, names in (("sink", config.sinks, used[0]), ("source", config.sources, used[1])):
        for name in configured or {}:
            if name not in names:
                sentence = f"no table uses {noun} {quote_name(name)}"
                yield PathProblem((f"{noun}s", name), f"unused_{noun}", sentence, severity="warning")


# Checks `snapshots` of event logs against the rest of a config.


def check_checkpoints(config: ConfigView) -> Iterator[PathProblem]:
    """Logs whose snapshots would never be taken."""
    read_logs = set()
    for table in config.tables:
        sinks = [entry.sink for entry in table.to or () if entry.sink is not None]
        logs = [sink for sink in sinks if config.is_event_log(sink)]
        if logs and any(config.is_mirror(sink) for sink in sinks):
            read_logs.add(next((log for log in logs if not _is_log_in_database(config, log)), logs[0]))
    for name, sink in (config.sinks or {}).items():
        if config.is_event_log(name) and sink.get("snapshots") and name not in read_logs:
            at = ("sinks", name, "snapshots")
            sentence = f"{describe_path(at)}: no table whose history is read from {quote_name(name)} has another target"
            step = (
                "a table's history is read from the first event log in a folder of its 'to'; name it there, or remove "
                "'snapshots'"
            )
            yield PathProblem(at, "inapplicable", sentence, step)


def _is_log_in_database(config: ConfigView, sink: str) -> bool:
    """See `LogSinkOptions.is_in_database`. False if the section of the log is wrong, which has findings of its own."""
    try:
        log = config.get_sink_model(sink).model_validate((config.sinks or {}).get(sink))
    except ValidationError:
        return False
    return isinstance(log, LogSinkOptions) and log.is_in_database


# Patterns that give several source tables one target. Only the first table would get it.

SHARED_TARGET_HINT = (
    "a target has the rows of one table. Give each table its own target, with a column that names the table "
    "({constant: ...} or {metadata: topic}), and read them together through a view"
)
"""The way to have several tables together."""


def check_shared_targets(config: ConfigView) -> Iterator[PathProblem]:
    """Warnings, because only the source knows if several such tables exist."""
    for table, entry in config.list_entries():
        match, template = table.match or "", entry.into
        if config.is_event_log(entry.sink) or is_exact(match) or describe_malformed(match):
            continue
        at = entry.find("into")[0] or entry.path
        if not template and is_glob(match) and "." in match and is_exact(own := get_unqualified_name(match)):
            sentence = (
                f"{describe_path(at)}: tables of several schemas that 'match' matches would all have the "
                f"target {quote_name(own)}"
            )
            step = f"name one schema in 'match'; or {SHARED_TARGET_HINT}"
            yield PathProblem(at, "shared_target", sentence, step, severity="warning")
        elif is_regex(match):
            groups = list_groups(match)
            used = {groups[name] for name in GROUP.findall(template) if name in groups}
            left_out = set(groups.values()) - used
            if used and left_out:
                left = f"{{{min(left_out)}}}"
                sentence = f"{describe_path(at)}: tables that differ in group {left} of 'match' alone would have one target"
                step = f"use {left} in it, or write (?:...) for a group that does not matter; or {SHARED_TARGET_HINT}"
                yield PathProblem(at, "shared_target", sentence, step, severity="warning")


# Checks `verify` against the rest of a config: each target needs something to be compared with.

OFF_STEP = "write 'verify: {every: off}' there"


def check_verification(config: ConfigView) -> Iterator[PathProblem]:
    """Targets that could never be compared."""
    for table, entry in config.list_entries():
        path, verify = entry.find("verify")
        every = to_mapping(verify).get("every")
        if every in (None, NO_RETENTION) or config.get_kind(entry.sink) is None or not config.is_mirror(entry.sink):
            continue
        if why := _describe_incomparable(config, table, entry):
            sentence = f"{describe_path(path)}: {describe_path(entry.path)} cannot be compared, because {why}"
            step = f"add an entry with a sink of 'kind: event_log' to 'to' of {describe_path(table.path)}"
            if entry.policy not in CHANGE_POLICIES:
                step = f"add 'database' to the source, or {step}"
            yield PathProblem(path, "inapplicable", sentence, f"{step}; or {OFF_STEP}")


def _describe_incomparable(config: ConfigView, table: TableView, entry: EntryView) -> str:
    """Why the target cannot be compared; empty if it can, or if the source is not known."""
    source = (config.sources or {}).get(table.source or "")
    if source is None or any(config.is_event_log(one.sink) for one in table.to or ()):
        return ""
    if entry.policy in CHANGE_POLICIES:
        return f"the policy {quote_name(entry.policy)} is compared with the event log of the table, which has none"
    has_rows = get_format(get_text(source, "format")).has_backfills and "database" in source
    return "" if has_rows else f"source {quote_name(table.source)} has no 'database', and the table has no event log"
