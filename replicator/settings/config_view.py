"""The config as far as it can be read: what the checks across parts look at, even when other parts are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from replicator.domain.events import EVENT_STORE
from replicator.ports.adapter_options import SinkOptions

from .adapter_models import EVENT_COLUMNS, OUTBOX, get_sink_model
from .document import Path, quote_name
from .tables import EXCLUSIVE_KEYS, POLICY_OF_SCD_TYPE, ROW_TRANSFORM_KEYS, TABLE_OPTIONS

PRIVATE = frozenset({"mask", "drop"})
"""Rules that keep a column's values from being stored."""
FLOATING_TYPES = ("double", "float", "float32", "float64")
Rule = dict[str, Any]
"""The rules for one column."""


TABLE_KEYS = ("keys", "tombstones", "out_of_range")
"""Keys that say how the records of a table are read, which is done once for all its lanes."""


@dataclass(frozen=True)
class EntryView:
    """One `to` entry; None where the value is missing or not text."""

    path: Path
    sink: str | None
    into: str | None
    policy: str
    keys: frozenset[str]
    """The keys that are written in the entry."""
    of_table: tuple[tuple[str, str], ...]
    """The keys that all lanes of a table must share, with their values in the entry, its table or the defaults."""
    options: dict[str, tuple[Path, Any]]
    """The options of the target that hold for it: the path where each is written, and its value."""
    row_transforms: dict[str, tuple[Path, Any]]
    """The keys of `tables.ROW_TRANSFORM_KEYS` that hold for it: the path where each is written, and its value."""
    columns: dict[str, dict[str, Any]]
    """The rules for single columns in the entry itself."""
    verify: tuple[Path, Any] = ((), None)
    """The key that holds for it: the path where it is written, and its value."""


@dataclass(frozen=True)
class TableView:
    """One entry of `tables`; None where the value is missing or not text."""

    path: Path
    match: str | None
    source: str | None
    into: str | None
    keys: frozenset[str]
    """The keys that are written in the table."""
    declared: tuple[str, ...] | None
    """The columns that the config declares; None when it declares none."""
    types: dict[str, Any]
    """The declared types of columns."""
    floating: frozenset[str]
    """The columns with types of floating-point numbers."""
    columns: dict[str, dict[str, Any]]
    """The rules for single columns, for all its lanes."""
    renamed: tuple[tuple[str, str], ...]
    """Old and new names of columns, from all levels."""
    on_reject: str | None
    to: tuple[EntryView, ...] | None
    """None when `to` is missing or not a list."""
    of_events: bool = False
    """It is one of an outbox's events, whose columns are fixed and stand for declared ones."""

    def list_names(self, name: str) -> frozenset[str]:
        """The names of a column: this one, and the others in `renamed_columns`."""
        names = {name}
        while more := {one for pair in self.renamed if names & set(pair) for one in pair if isinstance(one, str)} - names:
            names |= more
        return frozenset(names)

    @property
    def private(self) -> frozenset[str]:
        """The columns that it keeps private, under all their names."""
        columns = (name for name, rule in self.columns.items() if PRIVATE & rule.keys())
        return frozenset(one for name in columns for one in self.list_names(name))

    @property
    def unknown(self) -> str:
        """The description of a name that is not a declared column."""
        return "no column of an outbox's events" if self.of_events else "no column of the declared 'schema'"

    @property
    def known(self) -> str:
        """The columns that are declared."""
        return f"{'columns' if self.of_events else 'declared'}: {', '.join(map(quote_name, self.declared or ()))}"


@dataclass(frozen=True)
class ConfigView:
    """The parts of the config that refer to each other."""

    engine: str
    sources: dict[str, dict[str, Any]] | None
    """None if missing or not a mapping. References to it are not checked then."""
    sinks: dict[str, dict[str, Any]] | None
    tables: tuple[TableView, ...]
    levels: tuple[tuple[Path, frozenset[str]], ...]
    """The paths and the keys of each level with keys of a policy: the defaults, every table, every entry."""
    on_reject: str | None
    """The value for all tables."""
    dead_letters: dict[str, Any]
    """The store of rejected records."""
    event_store: dict[str, Any]
    projections: dict[str, dict[str, Any]]
    empty: tuple[str, ...]
    """The keys among sources, sinks and tables that exist and are empty."""

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
        if not isinstance(raw, dict):
            continue
        table = _make_table(("tables", index), raw, defaults)
        if get_text((sources or {}).get(table.source or "", {}), "format") == OUTBOX:
            columns = dict(EVENT_COLUMNS)
            table = replace(table, declared=tuple(columns), types=columns, floating=frozenset(), of_events=True)
        tables.append(table)
    entries = [entry for table in tables for entry in table.to or ()]
    return ConfigView(
        engine=get_text(data, "engine") or "local",
        sources=sources,
        sinks=_to_mappings(data.get("sinks")),
        tables=tuple(tables),
        levels=(
            (("defaults",), frozenset(defaults)),
            *((table.path, table.keys) for table in tables),
            *((entry.path, entry.keys) for entry in entries),
        ),
        on_reject=get_text(data, "on_reject"),
        dead_letters=to_mapping(data.get("dead_letters")),
        event_store=to_mapping(data.get("event_store")),
        projections=_to_mappings(data.get("projections")) or {},
        empty=tuple(name for name in ("sources", "sinks", "tables") if data.get(name) in ({}, [])),
    )


def _make_table(path: Path, raw: dict[str, Any], defaults: dict[str, Any]) -> TableView:
    to = raw.get("to")
    entries = None
    if isinstance(to, list):
        pairs = ((index, item) for index, item in enumerate(to) if isinstance(item, dict))
        entries = tuple(_make_entry((*path, "to", index), item, (item, raw, defaults)) for index, item in pairs)
    into = get_text(raw, "into") or get_text(defaults, "into")
    columns = to_mapping(raw.get("schema"))
    floating = frozenset(name for name, kind in columns.items() if str(kind).strip().lower() in FLOATING_TYPES)
    declared = tuple(columns) or None
    names = get_text(raw, "match"), get_text(raw, "source")
    keys, rules, on_reject = frozenset(raw), _read_rules(raw), get_text(raw, "on_reject")
    levels = (defaults, raw, *(item for item in (to if isinstance(to, list) else ()) if isinstance(item, dict)))
    renamed = tuple(pair for level in levels for pair in to_mapping(level.get("renamed_columns")).items())
    return TableView(path, *names, into, keys, declared, columns, floating, rules, renamed, on_reject, entries)


def _make_entry(path: Path, raw: dict[str, Any], raw_levels: tuple[dict[str, Any], ...]) -> EntryView:
    policies = []
    for level in raw_levels:
        scd_type = level.get("stored_as_scd_type")
        of_type = POLICY_OF_SCD_TYPE.get(scd_type) if isinstance(scd_type, int) else None
        policies.append(get_text(level, "policy") or of_type)
    policy = next(filter(None, policies), "scd1")
    common = tuple((key, str(next((level[key] for level in raw_levels if key in level), None))) for key in TABLE_KEYS)
    levels = ((path, raw_levels[0]), (path[:2], raw_levels[1]), (("defaults",), raw_levels[2]))
    options, shape = _find_nearest(TABLE_OPTIONS, levels), _find_nearest(ROW_TRANSFORM_KEYS, levels)
    names = get_text(raw, "sink"), get_text(raw, "into")
    verify = _find_nearest(("verify",), levels).get("verify", ((), None))
    return EntryView(path, *names, policy, frozenset(raw), common, options, shape, _read_rules(raw), verify)


def _read_rules(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rules for each column, the short form converted to the long one."""
    columns = to_mapping(raw.get("columns")).items()
    return {str(name): {"drop": True} if rule == "drop" else to_mapping(rule) for name, rule in columns}


def _find_nearest(keys: Iterable[str], levels: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, tuple[Path, Any]]:
    """The keys that have a value: the nearest path of each, and its value. If two keys exclude each other, the farther
    one does not count."""
    nearest: dict[str, tuple[Path, Any]] = {}
    for at, level in levels:
        excluded = {other for pair in EXCLUSIVE_KEYS for other in pair if nearest.keys() & set(pair)}
        nearest |= {key: ((*at, key), level[key]) for key in keys if key in level and key not in {*nearest, *excluded}}
    return nearest


def _to_mappings(value: Any) -> dict[str, dict[str, Any]] | None:
    return {name: to_mapping(item) for name, item in value.items()} if isinstance(value, dict) else None


def to_mapping(value: Any) -> dict[str, Any]:
    """The value when it is a mapping, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def get_text(raw: dict[str, Any], key: str) -> str | None:
    """The value of `key` when it is text."""
    value = raw.get(key)
    return value if isinstance(value, str) else None
