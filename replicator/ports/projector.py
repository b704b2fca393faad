"""The port of projections."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from replicator.domain.projection import Groups, InputVersions, Projection, ProjectionInput, RefreshRecord, RefreshWork


@dataclass(frozen=True, slots=True)
class RefreshStart:
    """The inputs, the table and its last refresh, as a new refresh finds them.

    - `reads`: the newest version of every input.
    - `last`: the record of the last refresh. None if there was none, or if another program wrote to the table since
      (test_a_changed_table_is_computed_from_scratch).
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

    Every adapter passes `testing.projector_contract.ProjectorContract`. Safe for one thread at a time.
    """

    @staticmethod
    def unreadable(query: str) -> str:
        """Why the engine cannot parse a query, as far as possible without starting the engine; empty if it can."""

    def open_refresh(self, projection: Projection) -> AbstractContextManager[RefreshStart]:
        """Begin a refresh: read its inputs and its table. `Fatal` that names an input which does not exist, or cannot
        be read (test_an_input_that_is_not_there_is_named). An input without older versions is held at its version until
        the context ends; no `replace` follows then."""

    def find_affected_groups(self, projection: Projection, one: ProjectionInput, since: int, until: int) -> Groups | None:
        """The groups with changed rows between two versions of an input, in columns that the query reads
        (test_groups_of_changed_rows). For an input with a key: the groups of the old and the new rows. For an input
        without a key: no groups, if no row differs. None if all groups may be affected, or if an old version cannot be
        read any more."""

    def replace(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> ReplaceResult:
        """Run the query over the versions in `record.reads`, and replace the rows of the groups of `work`, or all rows,
        with the result. One commit also stores `record` (test_groups_are_replaced_in_one_commit). With no groups only
        the record is written.

        `Retryable` if another program committed after `open_refresh`. `Fatal`, with nothing written, for rows with
        equal values of `keys`, and for a query that fails (test_rows_of_one_key_are_refused).
        """

    def describe_versions(self, projection: Projection, *, end: bool = False) -> str:
        """The location of older versions of the table that still contain its former rows, for people; empty without any.
        `end`: first remove them, so that no one can read them; the text then names the remains (test_versions_end)."""

    def close(self) -> None:
        """Release everything; may be called twice."""
