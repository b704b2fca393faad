"""The port of projections: the projector of an engine, and the tables of a sink as their inputs and results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from replicator.domain.projection import (
    Groups,
    InputVersion,
    InputVersions,
    Projection,
    ProjectionInput,
    RefreshRecord,
    RefreshWork,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RefreshStart:
    """The inputs, the table and its last refresh, as a new refresh finds them.

    - `reads`: the newest version of every input.
    - `last`: the record of the last refresh. None if there was none, or if another program wrote to the table since
      (test_table_changed_by_another_writer_is_refreshed_in_full).
    - `places`: the locations of the inputs and of the table, by label: absolute paths, or URLs.
    """

    reads: InputVersions
    last: RefreshRecord | None
    places: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReplaceResult:
    """The result of a refresh: the new version of the table, and its number of rows."""

    version: int
    rows: int


class Projector(Protocol):
    """Reads inputs, runs queries and stores their results, on one engine.

    Option `sinks`: by name the location of a lake (`AdapterOptions.for_projector`), whose tables the projector reads and
    writes itself, or the `SinkFeatures` of another sink. Every adapter passes
    `testing.projector_contract.ProjectorContract`. Safe for one thread at a time.
    """

    @staticmethod
    def unreadable(query: str) -> str:
        """Why the engine cannot parse a query, as far as possible without starting the engine; empty if it can."""

    def open_refresh(self, projection: Projection) -> AbstractContextManager[RefreshStart]:
        """Begin a refresh: read its inputs and its table. `Fatal` that names an input which does not exist, or cannot
        be read (test_missing_input_is_named_in_the_error). An input without older versions is held at its version until
        the context ends; no `replace` follows then."""

    def find_affected_groups(self, projection: Projection, one: ProjectionInput, since: int, until: int) -> Groups | None:
        """The groups with changed rows between two versions of an input, in columns that the query reads
        (test_changed_row_refreshes_its_old_and_new_group). For an input with a key: the groups of the old and the new
        rows. For an input without a key: no groups, if no row differs. None if all groups may be affected, or if an old
        version cannot be read any more."""

    def replace(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> ReplaceResult:
        """Run the query over the versions in `record.reads`, and replace the rows of the groups of `work`, or all rows,
        with the result. One commit also stores `record` (test_groups_are_replaced_in_one_commit). With no groups only
        the record is written.

        `Retryable` if another program committed after `open_refresh`. `Fatal`, with nothing written, for rows with
        equal values of `keys`, and for a query that fails (test_rows_with_duplicate_keys_are_refused).
        """

    def describe_versions(self, projection: Projection, *, end: bool = False) -> str:
        """The location of older versions of the table that still contain its former rows, for people; empty without
        any. `end`: first remove them, so that no one can read them; the text then names the remains
        (test_older_versions_are_removed)."""

    def close(self) -> None:
        """Release everything; may be called twice."""


# The tables of a sink that is no lake. All rows pass through this process, as Arrow.


@dataclass(frozen=True, slots=True)
class InputTable:
    """An input as a refresh finds it.

    - `version`: its version; other rows have another one.
    - `place`: its location, an absolute path or a URL.
    - `read(columns)`: the rows of that version, with those of `columns` (lower case; None: all) that exist, at least one.
    """

    version: InputVersion
    place: str
    read: Callable[[Collection[str] | None], pa.Table]


class InputMissing(Exception):
    """There is no table in this place, or none that a lane or a projection has written."""

    def __init__(self, place: object) -> None:
        super().__init__(place)
        self.place = place


@dataclass(frozen=True, slots=True)
class InputTables:
    """Reads the tables of a sink as inputs of projections.

    - `locate(table)`: the place of a table, for `open`. None: the sink is one table.
    - `open(places)`: the tables in these places, all in one snapshot, which is held until the context ends. InputMissing for
      a place without a table.
    - `database`: `open` also takes places of other sinks with an equal value. One call gets all of them.
    """

    database: str
    locate: Callable[[str | None], Any]
    open: Callable[[Sequence[Any]], AbstractContextManager[Sequence[InputTable]]]


@dataclass(frozen=True, slots=True)
class GoldTable:
    """The table of a projection as a refresh finds it.

    - `last`: as in `RefreshStart`. `place`: its location, an absolute path or a URL.
    - `group_type`: the Arrow type of its column `partition_by`. None if it is not known, or if there is no table.
    """

    last: RefreshRecord | None
    place: str
    group_type: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class GoldTables:
    """Holds the tables of projections in a sink. `LocalProjector` with such a sink passes
    `testing.projector_contract.ProjectorContract`."""

    find: Callable[[Projection], GoldTable]
    """The projection's table, which need not exist. Fatal for a table that no refresh of the projection created
    (test_table_not_created_by_a_refresh_is_refused)."""

    replace: Callable[[Projection, RefreshWork, RefreshRecord, pa.Table | None], ReplaceResult]
    """`replace(projection, work, record, rows)`: replace the rows of the groups of `work`, or all rows, with `rows`,
    and store `record`, in one commit (test_groups_are_replaced_in_one_commit). `rows` is None if there are no groups.
    The first call creates the table. If everything is replaced, it gets the columns of `rows`
    (test_changed_query_changes_the_columns).

    `Retryable` if another program has changed the table after `find` (test_concurrent_refresh_raises_retryable).
    `Fatal`, with nothing written, for rows of some groups with other columns than the table.
    """

    end_versions: Callable[[Projection], str] | None = None
    """Remove the replaced rows, so that no one can read them; returns a text for people that names the remains. None if
    nothing of them remains. No effect without a table (test_older_versions_are_removed)."""
