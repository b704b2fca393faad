"""Projections, and the work of a refresh.

A projection is a table that a query computes from others. Every refresh is one commit, which also stores the versions
of its inputs. The next refresh starts from there. The result may be divided into groups, each of which depends only on
its own rows of the inputs. Then only groups with changed rows are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Groups = frozenset[Any]
"""Values of the column that divides a result: text, whole numbers, booleans, dates, or None."""

MAX_GROUPS = 20_000
"""With more groups, searching their rows costs more than it saves: everything is computed."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The expression of a row's group, in SQL of the engine. `column`: its name in lower case, if it is just a column."""

    text: str
    column: str | None = None


@dataclass(frozen=True, slots=True)
class ProjectionInput:
    """A table that a query reads. `key`: the expression of a row's group; None if every group may depend on every row.
    `columns`: the columns that the query may read, in lower case; None for all."""

    name: str
    """Its name in the query."""
    sink: str
    table: str | None
    """Its name in the sink; None if the sink is a single table."""
    key: GroupKey | None = None
    columns: frozenset[str] | None = None

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.sink if self.table is None else f"{self.sink}.{self.table}"


@dataclass(frozen=True, slots=True)
class Projection:
    """A table that a query computes. `fingerprint` changes whenever a config change may change the result for the same
    inputs."""

    name: str
    query: str
    inputs: tuple[ProjectionInput, ...]
    sink: str
    into: str
    keys: tuple[str, ...] = ()
    partition_by: str | None = None
    fingerprint: str = ""
    config_line: str = ""

    @property
    def label(self) -> str:
        """The name of its table, for people."""
        return f"{self.sink}.{self.into}"


@dataclass(frozen=True, slots=True)
class InputVersion:
    """A version of one table. `mark` distinguishes equal version numbers, for tables that do not number every change."""

    table_id: str
    version: int
    mark: str = ""


InputVersions = Mapping[str, InputVersion]
"""By input."""


@dataclass(frozen=True, slots=True)
class RefreshRecord:
    """The record of a refresh in its commit."""

    run: str
    fingerprint: str
    reads: InputVersions
    kind: str
    at: str

    def to_json(self) -> dict[str, Any]:
        """The record as plain values."""
        reads: dict[str, dict[str, Any]] = {}
        for name, read in self.reads.items():
            reads[name] = {"table_id": read.table_id, "version": read.version}
            if read.mark:
                reads[name]["mark"] = read.mark
        values = {name: getattr(self, name) for name in ("run", "fingerprint", "kind", "at")}
        return {**values, "reads": reads}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RefreshRecord:
        """The record from `to_json`."""
        reads = {
            name: InputVersion(str(one["table_id"]), int(one["version"]), str(one.get("mark", "")))
            for name, one in data["reads"].items()
        }
        return cls(data["run"], data["fingerprint"], reads, data["kind"], data["at"])


@dataclass(frozen=True, slots=True)
class RefreshWork:
    """The work of a refresh: these groups (possibly none), or everything if None. `reason`: why everything."""

    groups: Groups | None = field(default=None)
    reason: str = ""

    @property
    def kind(self) -> str:
        """The kind of work in one word."""
        return "full" if self.groups is None else "groups" if self.groups else "none"


def list_dependents(projections: Iterable[Projection], tables: Iterable[str]) -> tuple[Projection, ...]:
    """The projections that read one of the tables (by label), directly or through another projection. `projections`: in
    order, each after the projections that it reads."""
    labels, dependents = {*tables}, []
    for one in projections:
        if labels & {read.label for read in one.inputs}:
            labels.add(one.label)
            dependents.append(one)
    return tuple(dependents)


FindAffectedGroups = Callable[[ProjectionInput, int, int], Groups | None]
"""Groups with changed rows between two versions of an input; None if all groups may be affected, or it is not known."""


def plan_refresh(
    projection: Projection, last: RefreshRecord | None, now: InputVersions, touched: FindAffectedGroups
) -> RefreshWork | None:
    """The work for the inputs as they are `now`; None if the last refresh has read the same versions."""
    if last is None:
        return RefreshWork(reason="there is no earlier refresh to continue from")
    if last.fingerprint != projection.fingerprint or last.reads.keys() != now.keys():
        return RefreshWork(reason="the projection was changed")
    for name, read in now.items():
        if read.table_id != last.reads[name].table_id or read.version < last.reads[name].version:
            return RefreshWork(reason=f"the table of {name} was created again")
    inputs = [one for one in projection.inputs if now[one.name] != last.reads[one.name]]
    together: Groups = frozenset()
    for one in inputs:
        groups = touched(one, last.reads[one.name].version, now[one.name].version)
        if groups is None:
            why = "the affected groups are unknown"
            if projection.partition_by is None:
                why = "the projection has no partition_by"
            elif one.key is None:
                why = "every group depends on it"
            return RefreshWork(reason=f"{one.name} has changed, and {why}")
        together |= groups
        if len(together) > MAX_GROUPS:
            return RefreshWork(reason=f"more than {MAX_GROUPS:,} groups have changed")
    return RefreshWork(together) if inputs else None
