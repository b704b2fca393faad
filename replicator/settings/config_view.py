"""The config as far as it can be read: what the checks across parts look at, even when other parts are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from replicator.domain.errors import suggest_name
from replicator.domain.events import EVENT_STORE
from replicator.ports.adapter_options import SinkOptions

from .adapter_models import EVENT_COLUMNS, OUTBOX, get_sink_model
from .document import Path, PathProblem, quote_name
from .tables import POLICY_OF_SCD_TYPE, ColumnNames, find_nearest, merge_names

PRIVATE = frozenset({"mask", "drop"})
"""Rules that keep a column's values from being stored."""
Rule = dict[str, Any]
"""The rules for one column."""


@dataclass(frozen=True)
class LevelView:
    """A section with keys of a policy: the defaults, a table or an entry."""

    path: Path
    raw: dict[str, Any]
    """The section as it is written."""


@dataclass(frozen=True)
class EntryView(LevelView):
    """One `to` entry."""

    nearest: dict[str, tuple[Path, Any]]
    """The keys that hold for it, of the entry, its table and the defaults: the path where each is written, and its value."""
    columns: dict[str, Rule]
    """The rules for single columns in the entry itself."""

    @property
    def sink(self) -> str | None:
        """None where it is missing or not text."""
        return get_text(self.raw, "sink")

    @property
    def into(self) -> str:
        """The name of its target as it is written anywhere; empty without one."""
        into = self.get_value("into")
        return into if isinstance(into, str) else ""

    @property
    def policy(self) -> str:
        """The policy that holds for it, by either of its names."""
        policy, scd_type = self.get_value("policy"), str(self.get_value("stored_as_scd_type"))
        return policy if isinstance(policy, str) else POLICY_OF_SCD_TYPE.get(scd_type, "scd1")

    def find(self, key: str) -> tuple[Path, Any]:
        """The path and the value of a key that holds for it; empty, and None, without one."""
        return self.nearest.get(key, ((), None))

    def get_value(self, key: str) -> Any:
        """The value of a key that holds for it; None without one."""
        return self.find(key)[1]


@dataclass(frozen=True)
class TableView(LevelView):
    """One entry of `tables`."""

    to: tuple[EntryView, ...] | None
    """None when `to` is missing or not a list."""
    types: dict[str, Any]
    """The columns that the config declares, and their types; empty when it declares none."""
    columns: dict[str, Rule]
    """The rules for single columns, for all its lanes."""
    names: ColumnNames
    """The names of renamed columns, from all levels."""
    of_events: bool
    """It is one of an outbox's events, whose columns are fixed and stand for declared ones."""

    @property
    def levels(self) -> tuple[LevelView, ...]:
        """The table and its entries."""
        return (self, *(self.to or ()))

    @property
    def match(self) -> str | None:
        """None where it is missing or not text."""
        return get_text(self.raw, "match")

    @property
    def source(self) -> str | None:
        """None where it is missing or not text."""
        return get_text(self.raw, "source")

    def list_names(self, name: str) -> frozenset[str]:
        """The names of a column: this one, and the others in `renamed_columns`."""
        return self.names.get(name, frozenset()) | {name}

    @property
    def private(self) -> frozenset[str]:
        """The columns that it keeps private, under all their names."""
        columns = (name for name, rule in self.columns.items() if PRIVATE & rule.keys())
        return frozenset(one for name in columns for one in self.list_names(name))

    def make_unknown_column(self, path: Path, subject: str, name: str, others: Iterable[str] | None = None) -> PathProblem:
        """The problem of a name at `path` that is no column of the table. `others`: the names to suggest one of."""
        owner, noun = ("an outbox's events", "columns") if self.of_events else ("the declared 'schema'", "declared")
        near = suggest_name(name, self.types if others is None else others)
        hint = near or f"{noun}: {', '.join(map(quote_name, self.types))}"
        return PathProblem(path, "unknown_column", f"{subject} is no column of {owner}", hint)


@dataclass(frozen=True)
class ConfigView:
    """The parts of the config that refer to each other."""

    engine: str
    sources: dict[str, dict[str, Any]] | None
    """None if missing or not a mapping. References to it are not checked then."""
    sinks: dict[str, dict[str, Any]] | None
    tables: tuple[TableView, ...]
    levels: tuple[LevelView, ...]
    """The defaults, every table and every entry."""
    dead_letters: dict[str, Any]
    """The store of rejected records."""
    event_store: dict[str, Any]
    projections: dict[str, dict[str, Any]]
    empty: tuple[str, ...]
    """The keys among sources, sinks and tables that exist and are empty."""

    def get_source(self, table: TableView) -> dict[str, Any]:
        """The section of a table's source; empty if it is not known."""
        return (self.sources or {}).get(table.source or "", {})

    def get_kind(self, sink: str | None) -> str | None:
        """The kind of a sink, None when unknown; that of the store of events is its name."""
        if sink == EVENT_STORE and self.event_store and EVENT_STORE not in (self.sinks or {}):
            return EVENT_STORE
        return get_text((self.sinks or {}).get(sink or "", {}), "kind")

    def get_sink_model(self, sink: str | None) -> type[SinkOptions]:
        """The facts of a sink, by its kind."""
        return get_sink_model(self.get_kind(sink))

    def is_event_log(self, sink: str | None) -> bool:
        """True if the sink is an event log."""
        return self.get_sink_model(sink).is_event_log

    def is_mirror(self, sink: str | None) -> bool:
        """True if the sink has the rows of tables: no event log, and not the event store."""
        return not self.is_event_log(sink) and self.get_kind(sink) != EVENT_STORE

    def list_entries(self) -> Iterator[tuple[TableView, EntryView]]:
        """Every `to` entry with its table."""
        return ((table, entry) for table in self.tables for entry in table.to or ())


def build_view(data: dict[str, Any]) -> ConfigView:
    """The readable parts of `data`, also if other parts are wrong."""
    raw_tables = data.get("tables")
    defaults = to_mapping(data.get("defaults"))
    sources = _to_mappings(data.get("sources"))
    tables = []
    for index, raw in enumerate(raw_tables if isinstance(raw_tables, list) else ()):
        if isinstance(raw, dict):
            source = (sources or {}).get(get_text(raw, "source") or "", {})
            tables.append(_make_table(("tables", index), raw, defaults, of_events=get_text(source, "format") == OUTBOX))
    return ConfigView(
        engine=get_text(data, "engine") or "local",
        sources=sources,
        sinks=_to_mappings(data.get("sinks")),
        tables=tuple(tables),
        levels=(LevelView(("defaults",), defaults), *(level for table in tables for level in table.levels)),
        dead_letters=to_mapping(data.get("dead_letters")),
        event_store=to_mapping(data.get("event_store")),
        projections=_to_mappings(data.get("projections")) or {},
        empty=tuple(name for name in ("sources", "sinks", "tables") if data.get(name) in ({}, [])),
    )


def _make_table(path: Path, raw: dict[str, Any], defaults: dict[str, Any], *, of_events: bool) -> TableView:
    to, entries = raw.get("to"), []
    for index, item in enumerate(to if isinstance(to, list) else ()):
        if isinstance(item, dict):
            at: Path = (*path, "to", index)
            paths, levels = (at, path, ("defaults",)), (item, raw, defaults)
            nearest = {key: ((*paths[n], key), levels[n][key]) for key, n in find_nearest(levels).items()}
            entries.append(EntryView(at, item, nearest, _read_rules(item)))
    renamed = [to_mapping(level.get("renamed_columns")) for level in (defaults, raw, *(entry.raw for entry in entries))]
    return TableView(
        path,
        raw,
        to=tuple(entries) if isinstance(to, list) else None,
        types=dict(EVENT_COLUMNS) if of_events else to_mapping(raw.get("schema")),
        columns=_read_rules(raw),
        names=merge_names({old: new for old, new in names.items() if isinstance(new, str)} for names in renamed),
        of_events=of_events,
    )


def _read_rules(raw: dict[str, Any]) -> dict[str, Rule]:
    """The rules for each column, the short form converted to the long one."""
    columns = to_mapping(raw.get("columns")).items()
    return {str(name): {"drop": True} if rule == "drop" else to_mapping(rule) for name, rule in columns}


def _to_mappings(value: Any) -> dict[str, dict[str, Any]] | None:
    return {name: to_mapping(item) for name, item in value.items()} if isinstance(value, dict) else None


def to_mapping(value: Any) -> dict[str, Any]:
    """The value when it is a mapping, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def get_text(raw: dict[str, Any], key: str) -> str | None:
    """The value of `key` when it is text."""
    value = raw.get(key)
    return value if isinstance(value, str) else None
