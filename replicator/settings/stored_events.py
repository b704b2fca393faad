"""What must hold where events of an outbox go to the store of events."""

from __future__ import annotations

from collections.abc import Iterator

from .event_columns import OF_MASKS
from .findings import Problem, inside, place, quoted
from .projections import EVENT_STORE
from .source_parts import OUTBOX
from .tables import EntrySettings
from .views import EntryView, TableView, View, text

IN_ENTRIES = frozenset({"sink", "into", "where"})
"""What an entry may say of them."""
OTHERS_ALONE = ("sequence_by", "apply_as_deletes", "apply_as_truncates", "column_list", "except_column_list")
"""Of what is said further out these would make something else of an event; all else is of other targets alone."""
ELSEWHERE = "write it in the entries of the other targets"


def names_store(config: View, sink: str | None) -> bool:
    """Whether an entry names the store of events, be it there or not."""
    return sink == EVENT_STORE and EVENT_STORE not in (config.sinks or ())


def stored_event_problems(config: View) -> Iterator[Problem]:
    """Everything wrong with entries that name the store of events."""
    for table, entry in config.entries():
        if names_store(config, entry.sink):
            yield from _missing(config, entry)
            yield from _of_another_format(config, table, entry)
            yield from _inapplicable(table, entry)
            yield from _in_an_object_store(config, entry)


def _missing(config: View, entry: EntryView) -> Iterator[Problem]:
    if not config.event_store:
        at = (*entry.path, "sink")
        sentence = f"unknown sink {quoted(EVENT_STORE)} {inside(entry.path)}: the config names no store of events"
        yield Problem(at, "unknown_sink", sentence, "add one, for example event_store: {path: ./deltalake/events}")


def _of_another_format(config: View, table: TableView, entry: EntryView) -> Iterator[Problem]:
    form = text((config.sources or {}).get(table.source or "", {}), "format")
    if form is not None and form != OUTBOX:
        sentence = f"{place(entry.path)}: the store of events takes events of an outbox; records of {quoted(form)} are none"
        step = f"name a sink; or a source with 'format: {OUTBOX}'"
        yield Problem((*entry.path, "sink"), "inapplicable", sentence, step)


def _inapplicable(table: TableView, entry: EntryView) -> Iterator[Problem]:
    keys = frozenset(info.alias or name for name, info in EntrySettings.model_fields.items())
    for key in sorted((entry.said & keys) - IN_ENTRIES):
        sentence = f"key '{key}' in {place(entry.path)} means nothing for the store of events: it keeps events as they are"
        yield Problem((*entry.path, key), "inapplicable", sentence, "remove it")
    for key in OTHERS_ALONE:
        path, said = entry.shape.get(key, ((), None))
        if said is not None and key not in entry.said:
            sentence = f"{place(path)} means nothing for {place(entry.path)}: the store of events keeps events as they are"
            yield Problem(path, "inapplicable", sentence, ELSEWHERE)
    others = [name for name, rule in table.columns.items() if not rule.keys() <= OF_MASKS]
    if others:
        path = (*table.path, "columns", others[0])
        sentence = f"{place(path)} means nothing for {place(entry.path)}: the store of events keeps events as they are"
        yield Problem(path, "inapplicable", sentence, ELSEWHERE)


def _in_an_object_store(config: View, entry: EntryView) -> Iterator[Problem]:
    """There Spark, which stores what programs emit on that engine, would replace what a lane commits in the same moment."""
    path = text(config.event_store, "path") or ""
    if config.engine == "spark" and "://" in path and not path.startswith("file://"):
        sentence = f"{place(entry.path)}: on the engine 'spark' lanes do not write a store of events in an object store yet"
        step = "set 'engine: local', or keep the store in a folder or a database"
        yield Problem((*entry.path, "sink"), "not_yet_supported", sentence, step)
