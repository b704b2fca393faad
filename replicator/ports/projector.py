"""The port to what computes projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from replicator.domain.projection import Groups, InputVersions, Projection, ProjectionInput, RefreshRecord, RefreshWork


@dataclass(frozen=True, slots=True)
class ReplaceResult:
    """What a refresh wrote: the version of the table that it made, and its rows."""

    version: int
    rows: int


class Projector(Protocol):
    """Reads inputs, runs queries, and keeps their results, on one engine. Every adapter passes
    `testing.projector_contract.ProjectorContract`. Safe for use from one thread at a time."""

    @staticmethod
    def unreadable(query: str) -> str:
        """Why the engine does not read a query, as far as that can be told without starting it; empty when it does."""

    def place(self, sink: str, table: str | None) -> str:
        """Where a table lies: an absolute path, or a URL."""

    def reads(self, projection: Projection) -> InputVersions:
        """The newest version of every input. `Fatal` naming an input that is not there yet, or that cannot be read
        (test_an_input_that_is_not_there_is_named). Of what keeps no earlier versions this one is held until `let_go`."""

    def last(self, projection: Projection) -> RefreshRecord | None:
        """What the last refresh said, now or when `reads` was asked; None where there was none, or where somebody else wrote
        to the table since (test_a_changed_table_is_computed_from_scratch)."""

    def find_affected_groups(self, projection: Projection, one: ProjectionInput, since: int, until: int) -> Groups | None:
        """The groups of which rows differ between two versions of an input, in columns that the query looks at: of an input
        with a key those of the old and of the new rows; of one without none, where no row differs. None where that may
        be all groups, or where an old version cannot be read any more (test_groups_of_changed_rows)."""

    def replace(self, projection: Projection, work: RefreshWork, record: RefreshRecord) -> ReplaceResult:
        """Run the query over the versions in `record.reads` and have its rows replace those of the groups of `work`, or
        all, in one commit that carries `record` (test_groups_are_replaced_in_one_commit). Without groups only the record
        is written.

        `Retryable` when somebody else committed since what `last` has said. `Fatal`, with nothing written, for rows that
        share the values of `keys`, and for a query that fails (test_rows_of_one_key_are_refused).
        """

    def let_go(self) -> None:
        """Hold nothing of what `reads` found any more: no `replace` follows it."""

    def versions(self, projection: Projection) -> str:
        """Where older versions of the table hold what its rows were, for people; empty where there is no table."""

    def end_versions(self, projection: Projection) -> str:
        """Remove what older versions of the table hold; nobody can read these afterwards. What could not be removed, for
        people (test_versions_end)."""

    def close(self) -> None:
        """Release everything; may be called twice."""
