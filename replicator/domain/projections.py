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

MOST_GROUPS = 20_000
"""More groups than these are not worth the search for their rows: everything is computed."""


@dataclass(frozen=True, slots=True)
class Key:
    """What the group of a row is, in the words of the engine. `column`: in lower case, where it is just that."""

    text: str
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """A table that a query reads. `key`: what of its columns is the group of a row; None
    where every group may come of every row. `columns`: those that the query may look at, in lower case; None for all."""

    name: str
    """What the query calls it."""
    sink: str
    table: str | None
    """Its name in the sink; None where the sink is one table."""
    key: Key | None = None
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
    inputs: tuple[Input, ...]
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
class Read:
    """A version of one table. `mark` tells versions of one number apart, where tables do not number what is done to them."""

    table_id: str
    version: int
    mark: str = ""


Reads = Mapping[str, Read]
"""By input."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a refresh says of itself in its commit."""

    run: str
    fingerprint: str
    reads: Reads
    kind: str
    at: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        reads = {name: _plain(read) for name, read in self.reads.items()}
        values = {name: getattr(self, name) for name in ("run", "fingerprint", "kind", "at")}
        return {**values, "reads": reads}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """What `to_json` gave."""
        reads = {
            name: Read(str(one["table_id"]), int(one["version"]), str(one.get("mark", "")))
            for name, one in data["reads"].items()
        }
        return cls(data["run"], data["fingerprint"], reads, data["kind"], data["at"])


def _plain(read: Read) -> dict[str, Any]:
    return {"table_id": read.table_id, "version": read.version, **({"mark": read.mark} if read.mark else {})}


@dataclass(frozen=True, slots=True)
class Work:
    """What a refresh computes: these groups, which may be none; or with None everything. `reason`: why everything."""

    groups: Groups | None = field(default=None)
    reason: str = ""

    @property
    def kind(self) -> str:
        """In one word."""
        return "full" if self.groups is None else "groups" if self.groups else "none"


def reading(projections: Iterable[Projection], tables: Iterable[str]) -> tuple[Projection, ...]:
    """Those that read one of the tables (their labels), or the table of another one of them. `projections`: each after those
    whose tables it reads."""
    labels, found = {*tables}, []
    for one in projections:
        if labels & {read.label for read in one.inputs}:
            labels.add(one.label)
            found.append(one)
    return tuple(found)


Touched = Callable[[Input, int, int], Groups | None]
"""The groups of which rows of an input differ between two versions; None where that may be all, or cannot be told."""


def work(projection: Projection, last: Record | None, now: Reads, touched: Touched) -> Work | None:
    """What is to be computed for the inputs as they are `now`; None where they are what the last refresh read."""
    if last is None:
        return Work(reason="no earlier refresh of it can be gone on from")
    if last.fingerprint != projection.fingerprint or last.reads.keys() != now.keys():
        return Work(reason="the projection was changed")
    for name, read in now.items():
        if read.table_id != last.reads[name].table_id or read.version < last.reads[name].version:
            return Work(reason=f"the table of {name} was made anew")
    moved = [one for one in projection.inputs if now[one.name] != last.reads[one.name]]
    if not moved:
        return None
    return _of_groups(
        projection, ((one, touched(one, last.reads[one.name].version, now[one.name].version)) for one in moved)
    )


def _of_groups(projection: Projection, found: Iterable[tuple[Input, Groups | None]]) -> Work:
    together: Groups = frozenset()
    for one, groups in found:
        if groups is None:
            return Work(reason=_whole(projection, one))
        together |= groups
        if len(together) > MOST_GROUPS:
            return Work(reason=f"more than {MOST_GROUPS:,} groups were touched")
    return Work(together)


def _whole(projection: Projection, one: Input) -> str:
    if projection.partition_by is None:
        return f"{one.name} has changed, and no partition_by is said"
    if one.key is None:
        return f"{one.name} has changed, which every group is computed from"
    return f"what has changed in {one.name} cannot be told by groups"
