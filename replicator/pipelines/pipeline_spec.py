"""The flows and tables that calls declare, and their conversion to `tables` of a config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replicator.settings import Document, Origin

from .parameters import make_config_error

OriginsByPath = dict[tuple[str | int, ...], Origin]


@dataclass(frozen=True)
class FlowSpec:
    """One `to` entry: the arguments of a call, under the names of the config."""

    name: str
    source: str
    match: str
    sink: str
    into: str | None
    keys: Mapping[str, Any]
    at: Origin

    @property
    def target(self) -> str:
        """As the call named it."""
        return self.sink if self.into is None else f"{self.sink}.{self.into}"


@dataclass(frozen=True)
class TableSpecOptions:
    """Options of one target."""

    options: Mapping[str, Any]
    at: Origin


@dataclass
class PipelineSpec:
    """All that was declared, in the order of the calls."""

    flows: list[FlowSpec] = field(default_factory=list)
    tables: dict[str, TableSpecOptions] = field(default_factory=dict)

    def add_flow(self, flow: FlowSpec) -> None:
        """ConfigError when there is a flow of that name."""
        first = next((f for f in self.flows if f.name == flow.name), None)
        if first is not None:
            hint = "give one of them another 'name'" if first.target != flow.target else "give one of them another target"
            raise make_config_error(flow.at, "same_name", f"there is already a flow '{flow.name}', at {first.at}", hint)
        self.flows.append(flow)

    def add_table(self, name: str, table: TableSpecOptions) -> None:
        """ConfigError when the table was declared before."""
        if name in self.tables:
            raise make_config_error(table.at, "same_name", f"table '{name}' is already declared, at {self.tables[name].at}")
        self.tables[name] = table

    def write_tables(self, document: Document) -> dict[tuple[str | int, ...], str]:
        """Add everything to `tables` of the document. Returns the path of each flow's entry with the flow's name.

        All flows from one source table are entries of one table, which the document may already have."""
        self._refuse_unused()
        tables = document.data.setdefault("tables", []) if isinstance(document.data, dict) else None
        if not isinstance(tables, list):
            return {}
        return {_write_entry(tables, flow, self._get_options(flow), document.origins): flow.name for flow in self.flows}

    def _get_options(self, flow: FlowSpec) -> Mapping[str, Any]:
        table = self.tables.get(flow.target)
        return table.options if table else {}

    def _refuse_unused(self) -> None:
        targets = {flow.target for flow in self.flows}
        for name, table in self.tables.items():
            if name not in targets:
                known = f"there are flows into {_join_names(targets)}" if targets else "there is no flow yet"
                raise make_config_error(table.at, "unused_table", f"no flow writes table '{name}'", known)


def _write_entry(tables: Any, flow: FlowSpec, options: Mapping[str, Any], origins: OriginsByPath) -> tuple[str | int, ...]:
    """Write the entry. Returns its path."""
    index = _find_table_index(tables, flow, origins)
    entries = tables[index].setdefault("to", [])
    if not isinstance(entries, list):
        return ("tables", index, "to")
    into = {} if flow.into is None else {"into": flow.into}
    entries.append({"sink": flow.sink, **into, **flow.keys, **options})
    path = ("tables", index, "to", len(entries) - 1)
    origins[path] = flow.at
    return path


def _find_table_index(tables: Any, flow: FlowSpec, origins: OriginsByPath) -> int:
    """The index of the table that the flow reads. A missing table is added."""
    for index, table in enumerate(tables):
        if isinstance(table, dict) and (table.get("source"), table.get("match")) == (flow.source, flow.match):
            return index
    tables.append({"match": flow.match, "source": flow.source})
    origins[("tables", len(tables) - 1)] = flow.at
    return len(tables) - 1


def split_source(source: str, at: Origin, known: Sequence[str]) -> tuple[str, str]:
    """The parts of `SOURCE.TABLE`."""
    name, dot, table = source.partition(".")
    if not dot or not name or not table:
        example = f"{next(iter(known), 'shop')}.{source.strip('.') or 'customers'}"
        raise make_config_error(
            at, "source", f"the source '{source}' names no table", f"write SOURCE.TABLE, such as '{example}'"
        )
    return name, table


def split_target(target: str, at: Origin, known: Sequence[str]) -> tuple[str, str | None]:
    """The parts of `SINK.TABLE`, or of `SINK` alone. The target then has the name of the source table."""
    name, dot, into = target.partition(".")
    if (dot and not (name and into)) or (not dot and name not in known):
        example = f"{next(iter(known), 'lake')}.{target.strip('.') or 'customers'}"
        sentence = f"the target '{target}' names no sink of the pipeline"
        raise make_config_error(at, "target", sentence, f"write SINK.TABLE, such as '{example}'")
    return name, into or None


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
