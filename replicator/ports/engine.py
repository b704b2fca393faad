"""The port to engines: whatever carries frames from raw records to folded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from replicator.domain.connectors import Connector
from replicator.domain.key_hashes import UNKEYED_HASHES, KeyHashes
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import Position, Span
from replicator.domain.table import TableSpec
from replicator.domain.transactions import TransactionMark, TransactionPart

from .decoder import Decoder
from .frames import F, FoldedChanges, RecordSlice, RejectedRecord, RoutedBatch, TransformedChanges


class Engine(Protocol[F]):
    """Stage 1 of every plan, and everything before it. Holds no state between calls; safe for use from several threads."""

    frame: type[F]

    @property
    def page(self) -> str | None:
        """The address at which people can watch it work, if it has one."""

    def route(self, raw: F, decoder: Decoder) -> RoutedBatch[F]:
        """The batch by table and schema (test_route_accounts_for_every_record), and where tables were dropped
        (test_route_finds_where_a_table_was_dropped)."""

    def learn(self, run: RecordSlice[F], decoder: Decoder) -> TableSpec:
        """`decoder.learn` of a sample of the run's records; its errors pass through."""

    def decode(self, run: RecordSlice[F], decoder: Decoder, table: TableSpec) -> tuple[F, F]:
        """The changes of a run, and its rejects (changes frame with `_error`); together every change of the run."""

    def unite(self, parts: Sequence[F], table: TableSpec) -> F:
        """Changes frames of one table at successive versions as one frame of `table`, the union of their columns;
        columns that a part lacks are null. Order is kept."""

    def after(self, changes: F, position: Position) -> tuple[F, int]:
        """The changes at or above `position` (partitions that are not in it pass whole), and how many were below it."""

    def before(self, changes: F, position: Position) -> tuple[F, F]:
        """The changes below `position` in the partitions it names and all others, and the rest."""

    def find_open_key_changes(self, changes: F) -> Position:
        """Per partition the offset of a delete half of a key change whose create half has not come yet; empty when none.

        The caller holds such changes back: applied alone, the values that the create half lacks would be lost.
        """

    def ends(self, changes: F) -> Position:
        """Per partition of a changes frame the offset after its last record; empty for a frame without rows."""

    def within(self, raw: F, span: Span) -> F:
        """The records of a raw frame that lie in `span`, in their order; partitions that it does not name are left out."""

    def split_blocked(
        self, raw: F, since: Mapping[tuple[str, int, str], int], error: str, hashes: KeyHashes = UNKEYED_HASHES
    ) -> tuple[F, F]:
        """The records of a raw frame that may go on, and those that may not, with `_error` set to `error`: of a topic,
        partition and key, whose hash is in `since`, those from that offset on
        (test_later_records_of_a_blocked_key_are_split_off)."""

    def rejected(self, rows: F, raw: Sequence[F]) -> Sequence[RejectedRecord]:
        """One item per rejected record, in order, with its bytes (test_rejected_brings_the_record_back).

        `rows` have `_error` set: a raw frame (`RoutedBatch.rejects`), or a changes or folded frame, whose records are looked
        up in the raw frames `raw` by `_topic`, `_partition`, `_offset`. A record of several rejected rows comes once, with
        the first error. A record that is in none of them comes without bytes rather than not at all.
        """

    def segments(self, changes: F, table: TableSpec) -> Sequence[F]:
        """`changes` cut, in order, never within a record, so that values which a segment's changes did not send are found in
        the target as it stood before the segment, or in the segment itself (test_segments_keep_the_old_row_readable).

        Within a segment no key change with unsent values takes them from a key that the segment touches before it; no
        other change with unsent values follows a delete of its key or such a key change to it, unless a change between
        them sent everything; a truncate is alone where values were not sent. Where the configuration orders changes
        (`TableSpec.ordered_by`) a change with unsent values is the first of its key, and no lower one of its key follows it
        (test_segments_of_changes_in_any_order). One segment unless such changes are there.
        """

    def transform_rows(self, changes: F, plan: ApplyPlan) -> TransformedChanges[F]:
        """What the lane makes of its table's changes before it folds them: `domain.transform.rows.RowTransforms`, change
        by change, in its order (test_row_transforms_equal_model). `changes` is a changes frame of the table as the source
        has it, not a folded one. Every change is in the frame, filtered or rejected
        (test_row_transforms_account_for_every_change). For a plan with a shape only.
        """

    def fold(self, changes: F, plan: ApplyPlan) -> FoldedChanges[F]:
        """Stage 1: drops changes that are not above the running maximum of their key in arrival order (equal: duplicate,
        below: superseded), then, for `plan.fold == "last"`, one row per key: the last change, with columns it did not send
        taken from the last change that sent them after the key's last delete or truncate (test_fold_equals_model). `_unsent`
        is left empty, not null, where all values are known but no single change sent them all: a row must still be there.
        Under a watermark every change is left, in order, and the facts tell its event times
        (test_fold_leaves_every_change_under_a_watermark). With a sequence for each column every change is there once, in the
        order of arrival over all partitions (test_fold_keeps_the_order_of_arrival).

        Folding the concatenation of folded frames gives the same as folding their changes at once
        (test_fold_composes). Input may therefore be a folded frame.
        """

    def records(self, raw: pa.Table) -> F:
        """Few records, given as `domain.change.RAW`, as a raw frame, in their order (test_records_are_a_raw_frame)."""

    def log(self, raw: F, decoder: Decoder) -> F:
        """The event-log frame of raw records: the columns of `domain.event_log.EVENT_LOG`, one row per record."""

    def count(self, changes: F) -> int:
        """The number of rows of a frame."""

    def concat(self, frames: Sequence[F]) -> F:
        """Frames of equal schema as one, in order."""


F_contra = TypeVar("F_contra", contravariant=True)


@runtime_checkable
class Prefetches(Protocol[F_contra]):
    """An engine that can begin with a batch while the one before it is made use of: what `route` and `decode` say of it is
    the same, and there sooner (test_prefetched_batches_decode_the_same)."""

    @property
    def prefetch_depth(self) -> int:
        """So many batches may be begun before the first of them is asked for; none where it does not work ahead here."""

    def begin(self, raw: F_contra, decoder: Decoder) -> None:
        """This raw frame will be routed, and its changes decoded, after those that were begun before. Nothing is promised
        of it: a frame that is begun need not be asked for."""

    def rest(self) -> None:
        """No more will be begun for now: lets go of what that takes."""


@runtime_checkable
class TracksTransactions(Protocol[F_contra]):
    """An engine that can tell what its frames hold of transactions."""

    def marks(self, raw: F_contra, topic: str, decoder: Decoder) -> Sequence[TransactionMark]:
        """What the records of that topic tell (`decoder.ReadsTransactionMarks`)."""

    def connector(self, raw: F_contra, decoder: Decoder) -> Connector | None:
        """What wrote the newest records (`decoder.ReadsTransactionMarks`). An engine for which looking is a job of its own
        looks until it has found one, and then no more for that decoder."""

    def parts(self, changes: F_contra, table: str) -> Sequence[TransactionPart]:
        """The transactions of a changes frame of `table`, rejects included, by partition. Rows that a snapshot read are of
        none."""

    def attend(self, raw: F_contra, topic: str) -> None:
        """Of this raw frame `marks` will be asked, and of what is decoded from it `exact_parts`: an engine may find them out
        while it does that."""

    def exact_parts(self, changes: F_contra, table: str) -> Sequence[TransactionPart]:
        """`parts`, told exactly (test_exact_parts_count_a_change_once). A change is the same as another with its place in
        the log (the first two elements of the sequence), its operation and its values: alike rows of one statement count
        once, which is too few and never too many."""
