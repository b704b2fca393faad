"""What must hold between the parts of a config: references, targets, matches. Offline, and all at once."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any

from replicator.domain.patterns import GROUP, groups_of, is_exact, is_glob, is_regex, literal_count, unknown_groups
from replicator.domain.topics import TopicFilter

from .column_problems import column_problems
from .findings import Origin, Path, Problem, inside, place, quoted
from .globs import malformed, overlap
from .lanes import own_name
from .nearest import did_you_mean
from .projection_problems import projection_problems
from .projections import EVENT_STORE
from .shape_problems import shape_problems
from .shared_targets import TOGETHER, shared_target_problems
from .snapshot_problems import snapshot_problems
from .source_options import source_option_problems
from .stored_events import names_store, stored_event_problems
from .tables import EXCLUSIVE, EntrySettings
from .target_options import target_option_problems
from .views import NO_MIRRORS, EntryView, TableView, View, text

Where = Callable[[Path], Origin]
"""Gives the origin of a path, to point at the other one of two."""

POLICIES_OF: dict[str, frozenset[str]] = {
    "deletes": frozenset({"scd1", "scd2"}),
    "track_history_column_list": frozenset({"scd2"}),
    "track_history_except_column_list": frozenset({"scd2"}),
    "ignore_null_updates": frozenset({"scd1"}),
    "ignore_null_updates_column_list": frozenset({"scd1"}),
    "ignore_null_updates_except_column_list": frozenset({"scd1"}),
    "partial_updates": frozenset({"scd1"}),
    "tombstone_retention": frozenset({"scd1"}),
    "watermark": frozenset({"append"}),
}
"""Keys of an entry that mean something under some policies only."""

OF_ONE_POLICY = frozenset(
    {
        "watermark",
        "ignore_null_updates",
        "ignore_null_updates_column_list",
        "ignore_null_updates_except_column_list",
        "partial_updates",
        "tombstone_retention",
    }
)
"""Of these, those that mean nothing around entries of which none has the policy."""

NAMES_HAVE_SCHEMAS = frozenset({"debezium_json", "debezium_avro"})
"""Formats whose tables are called SCHEMA.TABLE, or DATABASE.TABLE where there are no schemas."""

KNOWN_POLICIES = frozenset({"scd1", "scd2", "append"})


def problems(config: View, where: Where) -> Iterator[Problem]:
    """Everything wrong between the parts of `config`."""
    yield from _empty(config)
    yield from _references(config)
    yield from _contradictions(config)
    yield from _inapplicable(config)
    yield from _without_policy(config)
    yield from target_option_problems(config)
    yield from shape_problems(config)
    yield from column_problems(config)
    yield from source_option_problems(config)
    yield from stored_event_problems(config)
    yield from projection_problems(config)
    yield from _agreement(config, where)
    yield from _engines(config)
    yield from _matches(config, where)
    yield from _bare(config)
    yield from _targets(config, where)
    yield from shared_target_problems(config)
    yield from _places(config, where)
    yield from snapshot_problems(config)
    yield from _read_again(config)
    yield from _unused(config)


def _empty(config: View) -> Iterator[Problem]:
    for name in config.empty:
        yield Problem((name,), "empty", f"{name} is empty", "name at least one")
    for table in config.tables:
        if table.to is not None and not table.to:
            yield Problem((*table.path, "to"), "empty", f"{place((*table.path, 'to'))} is empty", "name at least one sink")


def _references(config: View) -> Iterator[Problem]:
    for table in config.tables:
        yield from _reference((*table.path, "source"), "source", table.source, config.sources)
    for _, entry in config.entries():
        at = (*entry.path, "sink")
        if not names_store(config, entry.sink):
            yield from _reference(at, "sink", entry.sink, config.sinks)


def _reference(path: Path, what: str, name: str | None, known: Iterable[str] | None) -> Iterator[Problem]:
    if name is None or known is None or name in known:
        return
    hint = did_you_mean(name, known) or f"known: {', '.join(known) or 'none'}"
    yield Problem(path, f"unknown_{what}", f"unknown {what} {quoted(name)} {inside(path[:-1])}", hint)


def _contradictions(config: View) -> Iterator[Problem]:
    for path, said in config.levels:
        for one, other in EXCLUSIVE:
            if {one, other} <= said:
                yield Problem((*path, other), "contradiction", f"{place(path)} has both '{one}' and '{other}'", "keep one")


def _inapplicable(config: View) -> Iterator[Problem]:
    allowed = frozenset({"sink"})
    keys = frozenset(info.alias or name for name, info in EntrySettings.model_fields.items())
    for _, entry in config.entries():
        if config.kind(entry.sink) == "event_log":
            for key in sorted(entry.said & keys - allowed):
                sentence = f"key '{key}' in {place(entry.path)} means nothing for an event log"
                yield Problem((*entry.path, key), "inapplicable", sentence, "remove it")
            continue
        for key in sorted(entry.said & POLICIES_OF.keys()) if config.kind(entry.sink) != EVENT_STORE else ():
            if entry.policy in KNOWN_POLICIES - POLICIES_OF[key]:
                sentence = f"key '{key}' in {place(entry.path)} means nothing under policy {quoted(entry.policy)}"
                yield Problem((*entry.path, key), "inapplicable", sentence, "remove it")


def _without_policy(config: View) -> Iterator[Problem]:
    """Keys of a table, or of the defaults, of which no entry has a use."""
    for path, said in config.levels:
        inner = [entry for _, entry in config.entries() if path in (("defaults",), entry.path[:2])]
        lanes = [entry for entry in inner if config.kind(entry.sink) not in NO_MIRRORS]
        for key in sorted(said & OF_ONE_POLICY) if inner else ():
            (policy,) = POLICIES_OF[key]
            if not any(entry.policy not in KNOWN_POLICIES - {policy} for entry in lanes):
                sentence = f"key '{key}' in {place(path)} means nothing: none of its entries has the policy {quoted(policy)}"
                yield Problem((*path, key), "inapplicable", sentence, "remove it")


def _agreement(config: View, where: Where) -> Iterator[Problem]:
    """A table's records are read once for all its lanes, so these cannot differ in what decides how."""
    for table in config.tables:
        first: EntryView | None = None
        for entry in table.to or ():
            if config.kind(entry.sink) == "event_log":
                continue
            first = first or entry
            for (key, value), (_, other) in zip(entry.of_table, first.of_table, strict=True):
                if value != other:
                    at = (*(entry if key in entry.said else first).path, key)
                    other_place = f"{place(first.path)} ({where(first.path)})"
                    sentence = f"{place(entry.path)}: its '{key}' differ from those of {other_place}"
                    yield Problem(at, "different_keys", sentence, f"write '{key}' once, in {place(table.path)}")


def _engines(config: View) -> Iterator[Problem]:
    for name, sink in (config.sinks or {}).items():
        engines = sink.get("engines")
        if isinstance(engines, list) and engines and config.engine not in engines:
            sentence = f"sink {quoted(name)} is for other engines than {quoted(config.engine)}"
            yield Problem(("sinks", name, "engines"), "engine", sentence, "change 'engine', or the sink's 'engines'")


def _matches(config: View, where: Where) -> Iterator[Problem]:
    usable = [t for t in config.tables if t.match and not malformed(t.match)]
    for one, other in combinations(usable, 2):
        if one.source != other.source:
            continue
        at = (*other.path, "match")
        first = where((*one.path, "match"))
        if one.match == other.match:
            yield Problem(at, "duplicate_match", f"{place(at)}: {quoted(other.match)} is there already, at {first}")
        elif _tied(str(one.match), str(other.match)):
            both = f"{quoted(other.match)} and {quoted(one.match)} ({first})"
            sentence = f"{place(at)}: {both} can match one table equally well"
            yield Problem(at, "tied_match", sentence, "make one of them more specific")


def _bare(config: View) -> Iterator[Problem]:
    """Names without a schema part, where the format gives every table one."""
    for table in config.tables:
        source = (config.sources or {}).get(table.source or "", {})
        if text(source, "format") not in NAMES_HAVE_SCHEMAS or not table.match or malformed(table.match):
            continue
        if not is_regex(table.match) and not overlap(table.match, "*.*"):
            at = (*table.path, "match")
            sentence = f"{place(at)}: {quoted(table.match)} matches no table, as the names of this source are SCHEMA.TABLE"
            yield Problem(at, "bare_match", sentence, f"write {quoted('*.' + table.match)}", severity="warning")


def _tied(one: str, other: str) -> bool:
    return is_glob(one) and is_glob(other) and literal_count(one) == literal_count(other) and overlap(one, other)


def _targets(config: View, where: Where) -> Iterator[Problem]:
    seen: dict[tuple[str, str], Path] = {}
    for table, entry in config.entries():
        into = _into(config, table, entry)
        if into is None or entry.sink is None:
            continue
        template = entry.into or table.into or ""
        if table.match and malformed(table.match):
            continue
        if is_regex(table.match or "") and GROUP.search(template):
            yield from _unknown_groups(table, entry, template)
        elif not is_exact(table.match or "") and template:
            at = (*entry.path, "into") if entry.into else entry.path
            sentence = f"{place(entry.path)}: every table that 'match' matches would have the target {quoted(into)}"
            step = "leave 'into' out, name one table in 'match', or take {1} of a regular expression (^a_([0-9]+)$) into it"
            step = f"{step}; {TOGETHER}"
            yield Problem(at, "same_target", sentence, step)
        elif (key := (entry.sink, into)) in seen:
            target = f"target {quoted(into)} of sink {quoted(entry.sink)}"
            sentence = f"{place(entry.path)}: {target} is taken, at {where(seen[key])}"
            yield Problem(entry.path, "same_target", sentence, f"give one of them another 'into'; {TOGETHER}")
        else:
            seen[key] = entry.path


def _unknown_groups(table: TableView, entry: EntryView, template: str) -> Iterator[Problem]:
    for name in unknown_groups(template, table.match or ""):
        at = (*entry.path, "into") if entry.into else (*table.path, "into") if table.into else entry.path
        known = ", ".join(f"{{{group}}}" for group in groups_of(table.match or "")) or "none"
        wrong = "has a brace alone" if name == "{" else f"takes group {quoted(name)}, which 'match' does not have"
        sentence = f"{place(at)} {wrong}"
        yield Problem(at, "unknown_group", sentence, f"groups: {known}")


def _into(config: View, table: TableView, entry: EntryView) -> str | None:
    """The target inside the sink; a stand-in for the glob where each table has its own; `(log)` in event logs."""
    if table.match is None:
        return None
    if config.kind(entry.sink) == "event_log":
        return f"(log) {table.match} of {table.source}"
    own = own_name(table.match) if is_exact(table.match) else f"(own) {table.match} of {table.source}"
    return entry.into or table.into or own


def _places(config: View, where: Where) -> Iterator[Problem]:
    """Two sinks that write to one place would overwrite each other's positions."""
    seen: dict[tuple[str, ...], str] = {}
    for name, sink in (config.sinks or {}).items():
        key = _place_of(sink.get("kind"), text(sink, "path"), text(sink, "dsn"), text(sink, "schema"))
        if key and key in seen:
            other = where(("sinks", seen[key]))
            sentence = f"sink {quoted(name)} writes to the same place as sink {quoted(seen[key])} ({other})"
            yield Problem(("sinks", name), "same_place", sentence, "use one sink for both")
        elif key:
            seen[key] = name
    key = _place_of("events", text(config.event_store, "path"), None, None)
    if key in seen:
        sentence = f"event_store writes to the same place as sink {quoted(seen[key])} ({where(('sinks', seen[key]))})"
        yield Problem(("event_store",), "same_place", sentence, "give it a folder of its own")


def _place_of(kind: object, path: str | None, dsn: str | None, schema: str | None) -> tuple[str, ...] | None:
    if path:
        return ("path", posixpath.normpath(path.replace("s3a://", "s3://", 1)))
    return (str(kind), dsn, schema or "public" if kind == "postgres" else "") if dsn else None


def _read_again(config: View) -> Iterator[Problem]:
    """A source that reads the topic of the dead letters would reject what was rejected, for ever."""
    topic, servers = text(config.letters, "topic"), _servers(config.letters)
    for name, source in (config.sources or {}).items():
        patterns = source.get("topics")
        if topic is None or not servers & _servers(source) or not isinstance(patterns, list):
            continue
        for number, pattern in enumerate(patterns):
            if isinstance(pattern, str) and _reads(pattern, topic):
                at = ("sources", name, "topics", number)
                sentence = f"{place(at)} also reads {quoted(topic)}, the topic of the dead letters"
                yield Problem(
                    at, "same_place", sentence, "name the topics more closely, or another one under 'dead_letters'"
                )


def _servers(said: dict[str, Any]) -> set[str]:
    return {server.strip() for server in (text(said, "bootstrap_servers") or "").split(",")} - {""}


def _reads(pattern: str, topic: str) -> bool:
    try:
        return TopicFilter([pattern])(topic)
    except re.error:
        return False


def _unused(config: View) -> Iterator[Problem]:
    used = {entry.sink for _, entry in config.entries()}, {table.source for table in config.tables}
    used[0].update(text(said, "sink") for said in config.projections.values())
    for what, known, names in (("sink", config.sinks, used[0]), ("source", config.sources, used[1])):
        for name in known or {}:
            if name not in names:
                sentence = f"no table uses {what} {quoted(name)}"
                yield Problem((f"{what}s", name), f"unused_{what}", sentence, severity="warning")
