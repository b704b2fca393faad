"""What a projection is, and what a refresh of it has to compute.

A projection is a table that a query computes from others. Every refresh is one commit, which also says which versions of
its inputs it read. The next one starts from there: where the result falls into groups, each computed from its own rows
of the inputs, only the groups are computed again of which rows have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Groups = frozenset[Any]
"""Values of the column that a result is divided by: text, whole numbers, booleans, dates; None is one too."""

MAX_GROUPS = 20_000
"""More groups than these are not worth the search for their rows: everything is computed."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What the group of a row is, in the words of the engine. `column`: in lower case, where it is just that."""

    text: str
    column: str | None = None


@dataclass(frozen=True, slots=True)
class ProjectionInput:
    """A table that a query reads. `key`: what of its columns is the group of a row; None
    where every group may come of every row. `columns`: those that the query may look at, in lower case; None for all."""

    name: str
    """What the query calls it."""
    sink: str
    table: str | None
    """Its name in the sink; None where the sink is one table."""
    key: GroupKey | None = None
    columns: frozenset[str] | None = None

    @property
    def label(self) -> str:
        """What people call it."""
        return self.sink if self.table is None else f"{self.sink}.{self.table}"


@dataclass(frozen=True, slots=True)
class Projection:
    """A table that a query computes. `fingerprint` is another one whenever the config would have another result come out of
    the same inputs."""

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
        """What people call its table."""
        return f"{self.sink}.{self.into}"


@dataclass(frozen=True, slots=True)
class InputVersion:
    """A version of one table. `mark` tells versions of one number apart, where tables do not number what is done to them."""

    table_id: str
    version: int
    mark: str = ""


InputVersions = Mapping[str, InputVersion]
"""By input."""


@dataclass(frozen=True, slots=True)
class RefreshRecord:
    """What a refresh says of itself in its commit."""

    run: str
    fingerprint: str
    reads: InputVersions
    kind: str
    at: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        reads = {name: _to_plain(read) for name, read in self.reads.items()}
        values = {name: getattr(self, name) for name in ("run", "fingerprint", "kind", "at")}
        return {**values, "reads": reads}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RefreshRecord:
        """What `to_json` gave."""
        reads = {
            name: InputVersion(str(one["table_id"]), int(one["version"]), str(one.get("mark", "")))
            for name, one in data["reads"].items()
        }
        return cls(data["run"], data["fingerprint"], reads, data["kind"], data["at"])


def _to_plain(read: InputVersion) -> dict[str, Any]:
    return {"table_id": read.table_id, "version": read.version, **({"mark": read.mark} if read.mark else {})}


@dataclass(frozen=True, slots=True)
class RefreshWork:
    """What a refresh computes: these groups, which may be none; or with None everything. `reason`: why everything."""

    groups: Groups | None = field(default=None)
    reason: str = ""

    @property
    def kind(self) -> str:
        """In one word."""
        return "full" if self.groups is None else "groups" if self.groups else "none"


def list_dependents(projections: Iterable[Projection], tables: Iterable[str]) -> tuple[Projection, ...]:
    """Those that read one of the tables (their labels), or the table of another one of them. `projections`: each after those
    whose tables it reads."""
    labels, found = {*tables}, []
    for one in projections:
        if labels & {read.label for read in one.inputs}:
            labels.add(one.label)
            found.append(one)
    return tuple(found)


FindAffectedGroups = Callable[[ProjectionInput, int, int], Groups | None]
"""The groups of which rows of an input differ between two versions; None where that may be all, or cannot be told."""


def plan_refresh(
    projection: Projection, last: RefreshRecord | None, now: InputVersions, touched: FindAffectedGroups
) -> RefreshWork | None:
    """What is to be computed for the inputs as they are `now`; None where they are what the last refresh read."""
    if last is None:
        return RefreshWork(reason="no earlier refresh of it can be gone on from")
    if last.fingerprint != projection.fingerprint or last.reads.keys() != now.keys():
        return RefreshWork(reason="the projection was changed")
    for name, read in now.items():
        if read.table_id != last.reads[name].table_id or read.version < last.reads[name].version:
            return RefreshWork(reason=f"the table of {name} was made anew")
    moved = [one for one in projection.inputs if now[one.name] != last.reads[one.name]]
    if not moved:
        return None
    return _plan_groups(
        projection, ((one, touched(one, last.reads[one.name].version, now[one.name].version)) for one in moved)
    )


def _plan_groups(projection: Projection, found: Iterable[tuple[ProjectionInput, Groups | None]]) -> RefreshWork:
    together: Groups = frozenset()
    for one, groups in found:
        if groups is None:
            return RefreshWork(reason=_describe_full_refresh(projection, one))
        together |= groups
        if len(together) > MAX_GROUPS:
            return RefreshWork(reason=f"more than {MAX_GROUPS:,} groups were touched")
    return RefreshWork(together)


def _describe_full_refresh(projection: Projection, one: ProjectionInput) -> str:
    if projection.partition_by is None:
        return f"{one.name} has changed, and no partition_by is said"
    if one.key is None:
        return f"{one.name} has changed, which every group is computed from"
    return f"what has changed in {one.name} cannot be told by groups"
