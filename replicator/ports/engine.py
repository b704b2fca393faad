"""The port of engines: everything from raw records to folded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

import pyarrow as pa

from replicator.domain.erasures import UNKEYED_HASHES, KeyHashes
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import Position, Span
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Connector, TransactionMark, TransactionPart

from .decoder import Decoder
from .frames import F, FoldedChanges, RecordSlice, RejectedRecord, RoutedBatch, TransformedChanges


class Engine(Protocol[F]):
    """Stage 1 of every plan, and everything before it. Holds no state between calls; safe for several threads."""

    frames: Frames[F]

    @property
    def features(self) -> EngineFeatures:
        """Everything that the engine can do besides these methods. The same for all its life."""

    def route(self, raw: F, decoder: Decoder) -> RoutedBatch[F]:
        """Divide the batch by table and schema (test_route_accounts_for_every_record), and find where tables were
        dropped (test_route_returns_the_positions_of_dropped_tables)."""

    def decode(self, slice_: RecordSlice[F], decoder: Decoder, table: TableSpec) -> tuple[F, F]:
        """The changes of a slice, and its rejects (a changes frame with `_error`). Together they are all changes of the
        slice."""

    def log(self, raw: F, decoder: Decoder) -> F:
        """The event-log frame of raw records: the columns of `domain.event_log.EVENT_LOG`, one row per record."""

    def transform_rows(self, changes: F, plan: ApplyPlan) -> TransformedChanges[F]:
        """Apply the row transforms of `plan` (`domain.transform.rows.RowTransforms`) to each change, in order, before
        the fold (test_row_transforms_equal_model). `changes` is a changes frame of the table as the source has it, not
        a folded one. Every change is in the returned frame, filtered or rejected
        (test_row_transforms_account_for_every_change). Only for a plan with row transforms."""

    def fold(self, changes: F, plan: ApplyPlan) -> FoldedChanges[F]:
        """Stage 1 of the plan (test_fold_equals_model):

        - For `plan.fold == "last"`, drops each change that is not above the running maximum of its key in arrival
          order: duplicate if equal, superseded if below.
        - Then it keeps one row per key of the table: the last change. Its unchanged values are taken from the last
          change that sent them after the key's last delete or truncate. `_unsent` is empty, not null, if all values
          are known but no single change sent them all: the target must still have a row.
        - For `plan.fold == "none"`, keeps each change once: a later change with equal sequence, operation and key
          (without a key: equal values, see `TableSpec.counted`) is a duplicate. With column versions, and in a
          history with unchanged values, the changes are in arrival order over all partitions
          (test_fold_keeps_the_order_of_arrival).
        - Under a watermark keeps every change, in order, and returns their event times in the facts
          (test_fold_under_a_watermark_keeps_every_change).

        Folding the concatenation of folded frames equals folding their changes at once
        (test_fold_of_folded_frames_equals_one_fold). The input may therefore be a folded frame.
        """


class Frames(Protocol[F]):
    """The frames of an engine: a raw frame (`domain.change.RAW`) has records of a source, a changes frame
    (`domain.change.changes_schema`) has changes of one table. Nothing here decodes, or applies a plan."""

    def from_arrow(self, raw: pa.Table) -> F:
        """A few records, given as `domain.change.RAW`, as a raw frame, in their order
        (test_from_arrow_returns_a_raw_frame_in_order)."""

    def sample(self, raw: F) -> pa.Table:
        """Some records of a raw frame, as `domain.change.RAW`: enough for `Decoder.learn`, few enough for one process."""

    def count(self, frame: F) -> int:
        """The number of rows of a frame."""

    def ends(self, changes: F) -> Position:
        """Per partition of a changes frame the offset after its last record; empty for a frame without rows."""

    def concat(self, frames: Sequence[F], table: TableSpec | None = None) -> F:
        """The frames as one, in order. They have equal schemas, or are changes frames of `table` at successive versions.
        For these the result has the columns of `table`, the union of theirs; columns that a frame does not have are
        null (test_concat_keeps_order_and_fills_with_null)."""

    def split(self, frame: F, span: Span) -> tuple[F, F]:
        """Two frames: the rows of a raw or a changes frame that are in `span`, and the others, in their order. Rows of
        partitions that `span` does not have are others (test_split_divides_by_span)."""

    def split_blocked(
        self, raw: F, since: Mapping[tuple[str, int, str], int], error: str, hashes: KeyHashes = UNKEYED_HASHES
    ) -> tuple[F, F]:
        """Two frames: the records to process, and the blocked records, with `_error` set to `error`. A record is
        blocked if `since` has its topic, partition and key hash, with its offset or a lower one
        (test_later_records_of_a_blocked_key_are_split_off)."""

    def segments(self, changes: F, table: TableSpec) -> Sequence[F]:
        """Split `changes` in order, never within a record, so that each unchanged value can be found. It is in the
        target as it was before the segment, or in the segment itself (test_segments_keep_the_old_row_readable).

        Within a segment:

        - A key change with unchanged values does not read from a key that the segment changes before it.
        - No other change with unchanged values follows a delete of its key, or such a key change to its key. It may
          follow if a change between them sent all values.
        - A truncate is alone if there are unchanged values.
        - If the configuration orders changes (`TableSpec.ordered_by`), a change with unchanged values is the first of
          its key. No lower change of its key follows it (test_partial_change_out_of_order_starts_a_segment).

        Without such changes the result is one segment.
        """

    def find_open_key_changes(self, changes: F) -> Position:
        """Per partition the offset of the delete half of a key change whose create half has not arrived; empty if there
        is none.

        The caller holds such changes back: applied alone, the values that the create half does not contain would be
        lost.
        """

    def rejected(self, rows: F, raw: Sequence[F]) -> Sequence[RejectedRecord]:
        """One item per rejected record, in order, with its bytes (test_rejected_returns_the_bytes_of_the_record).

        `rows` have `_error` set. They are a raw frame (`RoutedBatch.rejects`), or a changes or folded frame. For the
        latter, records are found in the raw frames `raw` by `_topic`, `_partition`, `_offset`. A record of several
        rejected rows is returned once, with the first error. A record that is in none of the raw frames is returned
        without bytes.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFeatures:
    """Everything that an engine can do besides the methods of `Engine`. A field that is None is not supported."""

    page: str | None = None
    """The address of the engine's own web page."""

    prefetch: Prefetch[Any] | None = None
    """Starts to decode a batch before the previous one is applied."""

    transactions: TransactionTracking[Any] | None = None
    """Finds the transactions in frames."""

    partitions: KeyPartitions | None = None
    """Partitions frames by key. For an engine whose frames are Arrow tables."""


@dataclass(frozen=True, slots=True)
class Prefetch(Generic[F]):
    """Starts to decode a batch before the previous one is applied. `Engine.route` and `Engine.decode` return the same, only
    sooner (test_prefetched_batches_decode_the_same).

    - `depth`: the number of batches that may be started before the first of them is used.
    - `begin(raw, decoder)`: start to route and decode this raw frame, after the frames that were started before. It is
      only a hint: the frame need not be used.
    - `stop_workers()`: release the resources of prefetch, since no frame will be started for now.
    """

    depth: int
    begin: Callable[[F, Decoder], None]
    stop_workers: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionTracking(Generic[F]):
    """Finds the transactions in frames.

    - `marks(raw, topic, decoder)`: the transaction marks of the topic's records (`decoder.DecoderFeatures`).
    - `connector(raw, decoder)`: the connector that wrote the newest records (`decoder.DecoderFeatures`). If the search
      needs a job of its own, the engine stops searching for that decoder once it has found one.
    - `parts(changes, table)`: the transactions of a changes frame of `table`, rejects included, by partition. Snapshot
      rows belong to none.
    - `attend(raw, topic)`: a hint that `marks` will be called for this raw frame, and `exact_parts` for its decoded
      changes. The engine may compute both while it decodes.
    - `exact_parts(changes, table)`: `parts` with exact counts (test_exact_parts_count_a_change_once). Two changes are the
      same if their position in the log (the first two elements of the sequence), operation and values are equal. Equal
      rows of one statement therefore count once: the count may be too low, never too high.
    """

    marks: Callable[[F, str, Decoder], Sequence[TransactionMark]]
    connector: Callable[[F, Decoder], Connector | None]
    parts: Callable[[F, str], Sequence[TransactionPart]]
    attend: Callable[[F, str], object]
    exact_parts: Callable[[F, str], Sequence[TransactionPart]]


@dataclass(frozen=True, slots=True)
class KeyPartitions:
    """Partitions frames by key.

    - `name`: of the hash partitioning. Another name may mean other partitions.
    - `split(rows, keys, number)`: divide `rows` into `number` partitions. The rows of a key are in one partition, in their
      order. The partition depends on the key alone (test_every_key_is_in_one_partition).
    """

    name: str
    split: Callable[[pa.Table, Sequence[str], int], Sequence[pa.Table]]
