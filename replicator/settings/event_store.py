"""Settings of the store of events that programs emit, and of what takes them over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from replicator.domain.events import EVENT_STORE
from replicator.ports.options import (
    Address,
    Count,
    Duration,
    Glob,
    Secret,
    Strict,
)

from .adapter_models import OUTBOX
from .config_view import ConfigView, EntryView, TableView, get_text
from .findings import PathProblem, describe_parent, describe_path, quote_name
from .tables import EntrySettings
from .transform_checks import MASK_KEYS


class ServeSettings(Strict):
    """The HTTP server of `replicator serve`."""

    address: Address = "127.0.0.1:8091"
    """HOST:PORT to listen on. Port 0 takes a free port."""
    token: Secret | None = None
    """The token that callers must send. Required if there is an `event_store`, and for addresses that are not loopback
    addresses."""
    tables: list[Glob] | None = Field(default=None, min_length=1)
    """The targets that may be read, as SINK.TABLE or globs. By default the targets of all lanes."""
    max_rows: Count = 10_000
    """The most rows of one answer."""
    query_timeout: Duration = "30 seconds"
    """The longest time for one answer."""


# Checks entries through which events of an outbox go to the event store.

ENTRY_KEYS = frozenset({"sink", "into", "where"})
"""The keys of such an entry."""
OTHER_TARGET_KEYS = ("sequence_by", "apply_as_deletes", "apply_as_truncates", "column_list", "except_column_list")
"""Keys of the table or of `defaults` that would change an event. All other keys only affect other targets."""
OTHER_ENTRY_HINT = "write it in the entries of the other targets"


def is_event_store(config: ConfigView, sink: str | None) -> bool:
    """True if an entry names the event store, configured or not."""
    return sink == EVENT_STORE and EVENT_STORE not in (config.sinks or ())


def check_event_store(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong with entries that name the store of events."""
    for table, entry in config.list_entries():
        if is_event_store(config, entry.sink):
            yield from _check_missing(config, entry)
            yield from _check_format(config, table, entry)
            yield from _check_inapplicable(table, entry)
            yield from _check_object_store(config, entry)


def _check_missing(config: ConfigView, entry: EntryView) -> Iterator[PathProblem]:
    if not config.event_store:
        at = (*entry.path, "sink")
        sentence = f"unknown sink {quote_name(EVENT_STORE)} {describe_parent(entry.path)}: the config has no 'event_store'"
        yield PathProblem(at, "unknown_sink", sentence, "add one, for example event_store: {path: ./deltalake/events}")


def _check_format(config: ConfigView, table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    form = get_text((config.sources or {}).get(table.source or "", {}), "format")
    if form is not None and form != OUTBOX:
        sentence = (
            f"{describe_path(entry.path)}: the store of events only takes events of an outbox, and not records of "
            f"format {quote_name(form)}"
        )
        step = f"name a sink; or a source with 'format: {OUTBOX}'"
        yield PathProblem((*entry.path, "sink"), "inapplicable", sentence, step)


def _check_inapplicable(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    keys = frozenset(info.alias or name for name, info in EntrySettings.model_fields.items())
    for key in sorted((entry.keys & keys) - ENTRY_KEYS):
        sentence = (
            f"key '{key}' in {describe_path(entry.path)} means nothing for the store of events: it keeps events as they are"
        )
        yield PathProblem((*entry.path, key), "inapplicable", sentence, "remove it")
    for key in OTHER_TARGET_KEYS:
        path, setting = entry.row_transforms.get(key, ((), None))
        if setting is not None and key not in entry.keys:
            sentence = (
                f"{describe_path(path)} means nothing for {describe_path(entry.path)}: the store of "
                f"events keeps events as they are"
            )
            yield PathProblem(path, "inapplicable", sentence, OTHER_ENTRY_HINT)
    others = [name for name, rule in table.columns.items() if not rule.keys() <= MASK_KEYS]
    if others:
        path = (*table.path, "columns", others[0])
        sentence = (
            f"{describe_path(path)} means nothing for {describe_path(entry.path)}: the store of events "
            f"keeps events as they are"
        )
        yield PathProblem(path, "inapplicable", sentence, OTHER_ENTRY_HINT)


def _check_object_store(config: ConfigView, entry: EntryView) -> Iterator[PathProblem]:
    """In an object store Spark, which stores events of programs, would replace a commit that a lane makes at that time."""
    path = get_text(config.event_store, "path") or ""
    if config.engine == "spark" and "://" in path and not path.startswith("file://"):
        sentence = (
            f"{describe_path(entry.path)}: on the engine 'spark' lanes do not write a store of events in an object store yet"
        )
        step = "set 'engine: local', or keep the store in a folder or a database"
        yield PathProblem((*entry.path, "sink"), "not_yet_supported", sentence, step)
