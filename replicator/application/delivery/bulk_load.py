"""Bulk load: writes the first rows of a new target in one commit, from spill files.

Merging batch after batch would rewrite the target each time, and compare each batch with all of it in memory.
If new rows are only needed at the end of the stream, and the target is empty, rows go to files instead. The files
are partitioned by key hash. A partition contains all changes of its keys, so it is folded by itself, once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Generic, cast
from urllib.parse import quote

import pyarrow as pa

from replicator.application.problem import ensure_accounting
from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.domain.plain_values import format_count
from replicator.domain.policy.plan import Counts, Facts, LaneState, merge_facts
from replicator.domain.position import EMPTY_SPAN, Position, Span
from replicator.local_files import make_folder, replace_file, sync_path
from replicator.ports.engine import Engine, KeyPartitions
from replicator.ports.frames import F, FoldedChanges, Lane, LaneOutcome, RejectRows
from replicator.ports.sink import BulkLoads, Sink

from .bounded_queue import IPC_OPTIONS, RecordFrame, RecordFrames, WriteRequest, can_join_pair

# Spill files of one lane: rows partitioned by key hash, and the records behind them.

SPILL_PARTITIONS = 64
FORMAT = 1
"""Format of the files. Files of another format are ignored, and written again."""
MANIFEST_FILE, ROWS_FILE, RECORDS_FILE = "laid.json", "rows.arrow", "records"


@dataclass(frozen=True)
class SpillSlice:
    """Rows that were spilled at once.

    - `counts`: the counts of their fold.
    - `batches`: the number of Arrow record batches in each partition.
    - `records`: the bytes of each frame of records.
    - `has_unchanged`, `deletes`: some change has unchanged values, or is a delete.
    """

    number: int
    span: Span
    rows: int
    counts: Counts
    batches: tuple[int, ...]
    records: tuple[int, ...]
    has_unchanged: bool
    deletes: bool

    def to_json(self) -> dict[str, Any]:
        """The slice as JSON."""
        fields = {**asdict(self), "span": self.span.to_json(), "unsent": self.has_unchanged}
        del fields["has_unchanged"]
        return fields

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SpillSlice:
        """A slice from the result of `to_json`."""
        fields = {**data, "span": Span.from_json(data["span"]), "counts": Counts(**data["counts"])}
        fields["has_unchanged"] = fields.pop("unsent")
        slice_ = cls(**fields)
        return replace(slice_, batches=tuple(slice_.batches), records=tuple(slice_.records))


@dataclass
class SpillFiles:
    """The slices in `folder`. Each is complete and durable before the manifest lists it.

    - `made_by`: the partitioner; another one divides keys differently.
    - `rule`: the rule of the plan.
    - `identity`: the topic identities, by name.
    """

    folder: Path
    made_by: str
    rule: str = ""
    identity: dict[str, str] = field(default_factory=dict)
    slices: list[SpillSlice] = field(default_factory=list)

    @classmethod
    def open_folder(cls, folder: Path, made_by: str) -> SpillFiles:
        """The slices in a folder; none if another partitioner or format wrote them.

        The last slice with rows, and all after it, are left out: the resuming lane has to read the table's plan
        again.
        """
        try:
            manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
        except FileNotFoundError:
            return cls(folder, made_by)
        if (manifest.get("format"), manifest.get("made_by")) != (FORMAT, made_by):
            return cls(folder, made_by)
        slices = [SpillSlice.from_json(one) for one in manifest["pieces"]]
        last = max((number for number, slice_ in enumerate(slices) if slice_.rows), default=0)
        return cls(folder, made_by, manifest["rule"], manifest["identity"], slices[:last])

    @property
    def span(self) -> Span:
        """The span of all slices."""
        return reduce(Span.then, (slice_.span for slice_ in self.slices), EMPTY_SPAN)

    @property
    def rows(self) -> int:
        """The number of rows in all slices."""
        return sum(slice_.rows for slice_ in self.slices)

    @property
    def counts(self) -> Counts:
        """The counts of all slices' folds."""
        return sum((slice_.counts for slice_ in self.slices), Counts())

    def add_slice(self, slice_: SpillSlice, parts: Sequence[pa.Table], records: Sequence[RecordFrame[Any]]) -> None:
        """Add a slice, durably. Fills in its `batches` and `records`. OSError if it cannot be written."""
        folder = self._slice_folder(slice_.number)
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        lengths = []
        with (folder / RECORDS_FILE).open("wb") as file:
            for one in records:
                lengths.append(one.write(file))
        batch_counts = []
        with (folder / ROWS_FILE).open("wb") as file, pa.ipc.new_file(file, parts[0].schema, options=IPC_OPTIONS) as writer:
            for part in parts:
                batches = part.combine_chunks().to_batches()
                for batch in batches:
                    writer.write_batch(batch)
                batch_counts.append(len(batches))
        for path in (folder / RECORDS_FILE, folder / ROWS_FILE, folder):
            sync_path(path)
        self.slices.append(replace(slice_, batches=tuple(batch_counts), records=tuple(lengths)))
        self._write_manifest()

    def read_schema(self) -> pa.Schema | None:
        """The schema of the rows; None without any."""
        return self._open_slice(self.slices[0]).schema if self.slices else None

    def read_partition(self, number: int) -> list[pa.RecordBatch]:
        """The rows of one partition, in the order in which they were spilled."""
        batches = []
        for slice_ in self.slices:
            first = sum(slice_.batches[:number])
            reader = self._open_slice(slice_)
            batches += [reader.get_batch(first + i) for i in range(slice_.batches[number])]
        return batches

    def read_records(self) -> Iterator[RecordFrame[Any]]:
        """The records behind the rows, packed."""
        for slice_ in self.slices:
            at = 0
            with pa.memory_map(str(self._slice_folder(slice_.number) / RECORDS_FILE)) as file:
                whole = file.read_buffer()
            for length in slice_.records:
                yield RecordFrame.from_buffer(whole.slice(at, length))
                at += length

    def remove(self) -> None:
        """Delete all files. OSError if that fails."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.slices.clear()

    def _slice_folder(self, number: int) -> Path:
        return self.folder / f"{number:06}"

    def _open_slice(self, slice_: SpillSlice) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self._slice_folder(slice_.number) / ROWS_FILE)))

    def _write_manifest(self) -> None:
        manifest = {"format": FORMAT, "made_by": self.made_by, "rule": self.rule, "identity": self.identity}
        document = {**manifest, "pieces": [slice_.to_json() for slice_ in self.slices]}
        replace_file(self.folder / MANIFEST_FILE, json.dumps(document).encode())


LOAD_BYTES = 16 << 20
"""Bytes of rows that are folded at once, in whole partitions."""
MIN_FOLD_BYTES = 1 << 20
"""Smallest mean size, in bytes, of partitions that are folded one by one."""
SPILL_BYTES = 64 << 20
"""Bytes in the queue before its writes are spilled: more would not be faster."""


def make_bulk_loader(folder: Path | None, sink: Sink[Any], engine: Engine[Any]) -> BulkLoader[Any] | None:
    """The bulk loader of a sink, with its files in `folder`; None without a folder, or if sink or engine do not
    support it."""
    bulk_load, partitions = sink.features.bulk_load, engine.features.partitions
    if folder is None or bulk_load is None or partitions is None:
        return None
    return BulkLoader(folder, sink, bulk_load, engine, partitions)


class BulkLoader(Generic[F]):
    """The bulk loads of one sink. Only the thread of its worker uses it.

    Spill files outlive the program, and the next run continues with them: `get_state` returns the position they
    reach. OSErrors are raised as EnvironmentProblem.
    """

    def __init__(
        self, folder: Path, sink: Sink[F], bulk_load: BulkLoads, engine: Engine[F], partitions: KeyPartitions
    ) -> None:
        self._folder = folder
        self._sink = sink
        self._bulk_load = bulk_load
        self._engine = engine
        self._partitions = partitions
        self._spill_files: dict[str, SpillFiles] = {}
        self.ended = False
        """True once a write could not be spilled: from then on writes are merged."""
        self._last: dict[str, WriteRequest[F]] = {}

    def get_state(self, lane: Lane) -> LaneState | None:
        """The state of the lane, its spilled rows included. The first call reads the files of an earlier run."""
        state = self._sink.state(lane)
        spill_files = self._open_spill(lane)
        if state is not None:
            _wrap_os_errors(spill_files.remove)  # An earlier run loaded it and ended before it removed the files.
        if state is not None or not spill_files.slices:
            return state
        return LaneState(spill_files.span.end, identity=tuple(sorted(spill_files.identity.items())), rule=spill_files.rule)

    def has_spilled(self, lane: Lane) -> bool:
        """True if the lane has spilled rows."""
        return lane.id in self._last

    def list_placeholder_writes(self) -> tuple[WriteRequest[F], ...]:
        """For each lane with spilled rows, a write without rows that represents all of them."""
        return tuple(self._last.values())

    def is_placeholder(self, request: WriteRequest[F]) -> bool:
        """True if the write is one of `list_placeholder_writes`."""
        return self._last.get(request.run.lane.id) is request

    def is_other_plan(self, request: WriteRequest[F]) -> bool:
        """True if the lane has spilled rows of a plan other than the write's.

        The target is not prepared for the latter yet.
        """
        last = self._last.get(request.run.lane.id)
        return last is not None and last.write.plan != request.write.plan

    def spill_write(self, request: WriteRequest[F]) -> Position | None:
        """Spill a write of a prepared lane. Returns the position of the lane after it.

        None if the write cannot be spilled: it affects others, or the target has rows already. Fatal if the
        files of an earlier run were written under another plan.
        """
        write, spill_files = request.write, self._open_spill(request.run.lane)
        at = spill_files.span.end
        if spill_files.slices and not write.out_of_band and not write.span.after(at):
            return at
        if spill_files.slices and not self.has_spilled(request.run.lane):
            # Continue the files of an earlier run, no matter if the first write after them can be spilled.
            if (spill_files.rule, spill_files.read_schema()) != (write.plan.rule, _get_frame(request).schema):
                raise _make_orphan_error(request.run.lane.id, "were written under another configuration")
            self._last[request.run.lane.id] = self._make_placeholder_write(request, spill_files)
        if not self._can_spill(request, spill_files):
            self.ended = True
            return None
        facts = write.folded.facts
        number = spill_files.slices[-1].number + 1 if spill_files.slices else 0
        flags = (facts.has_unchanged, facts.has_deletes)
        slice_ = SpillSlice(number, write.span, write.folded.rows, write.folded.counts, (), (), *flags)
        spill_files.rule = write.plan.rule
        spill_files.identity.update(write.identity)
        parts = self._partitions.split(write.folded.frame, write.plan.table.keys, SPILL_PARTITIONS)
        _wrap_os_errors(lambda: spill_files.add_slice(slice_, parts, request.raw))
        self._last[request.run.lane.id] = self._make_placeholder_write(request, spill_files)
        return spill_files.span.end

    def load_target(self, lane: Lane, reject: RejectRows[F]) -> LaneOutcome:
        """Write the spilled rows into the lane's target, in one commit. The outcome counts all changes behind them.

        Errors as of `Sink.apply`. The spill files are kept then.
        """
        request, spill_files = self._last[lane.id], self._open_spill(lane)
        state = self._sink.state(lane)
        if state is not None:  # A failed attempt had committed.
            applied = LaneOutcome(state.position, spill_files.counts + Counts(applied=spill_files.rows), state.purged_up_to)
            return self._finish_load(lane, applied)
        parts, folder = _FoldedPartitions(spill_files, request, self._engine), spill_files.folder / "load"
        shutil.rmtree(folder, ignore_errors=True)
        _wrap_os_errors(lambda: folder.mkdir(parents=True))
        applied = self._bulk_load.load(request.write, parts, reject, folder)
        total = parts.counts.total + applied.counts.total
        ensure_accounting(
            total == spill_files.rows,
            f"Lane {lane.id} has spilled {format_count(spill_files.rows, 'row')}, but accounts for {total}.",
        )
        return self._finish_load(lane, replace(applied, counts=spill_files.counts + parts.counts + applied.counts))

    def _finish_load(self, lane: Lane, applied: LaneOutcome) -> LaneOutcome:
        del self._last[lane.id]
        _wrap_os_errors(self._open_spill(lane).remove)
        return applied

    def read_records(self, lane: Lane) -> RecordFrames[F]:
        """The records behind the spilled rows."""
        return RecordFrames(tuple(cast("Iterator[RecordFrame[F]]", self._open_spill(lane).read_records())))

    def _open_spill(self, lane: Lane) -> SpillFiles:
        if lane.id not in self._spill_files:
            folder = self._folder / quote(lane.id, safe="")
            self._spill_files[lane.id] = _wrap_os_errors(lambda: SpillFiles.open_folder(folder, self._partitions.name))
        return self._spill_files[lane.id]

    def _can_spill(self, request: WriteRequest[F], spill_files: SpillFiles) -> bool:
        write, facts = request.write, request.write.folded.facts
        affects_others = write.out_of_band or write.complete is not None or request.bundle
        if affects_others or facts.has_key_changes or facts.truncated_at is not None or facts.truncates:
            return False
        if spill_files.slices:
            return can_join_pair(self._last[request.run.lane.id], request)
        return self._bulk_load.loads(request.run.lane, write.plan)

    def find_orphans(self) -> Mapping[str, Fatal]:
        """By lane, the error for spill files of an earlier run that no write continued, so that their plan is
        unknown."""
        orphans = [lane for lane, spill_files in self._spill_files.items() if spill_files.slices and lane not in self._last]
        return {lane: _make_orphan_error(lane, "are followed by no record that can be applied") for lane in orphans}

    def _make_placeholder_write(self, request: WriteRequest[F], spill_files: SpillFiles) -> WriteRequest[F]:
        """One write without rows that represents all spilled rows."""
        facts = Facts(
            has_unchanged=any(one.has_unchanged for one in spill_files.slices),
            has_deletes=any(one.deletes for one in spill_files.slices),
        )
        nothing = cast("FoldedChanges[F]", FoldedChanges(_get_frame(request).slice(0, 0), facts, Counts(), 0, 0))
        write = replace(request.write, folded=nothing, span=spill_files.span, identity=dict(spill_files.identity))
        return replace(request, write=write, raw=())


class _FoldedPartitions(Generic[F]):
    """The folded partitions of spilled rows. `counts`: the counts of the folds, complete after each iteration."""

    def __init__(self, spill_files: SpillFiles, request: WriteRequest[F], engine: Any) -> None:
        self._spill_files = spill_files
        self._engine = engine
        self._plan = request.write.plan
        self.counts = Counts()

    def __iter__(self) -> Iterator[FoldedChanges[F]]:
        self.counts = Counts()
        for group in self._group_partitions():
            # Partitions share no key. A partition is in log order if the topic has one partition, which saves the
            # fold most of its work. Small partitions are joined first: the saving is too small for them.
            are_small = len(group) > 1 and sum(part.nbytes for part in group) < MIN_FOLD_BYTES * len(group)
            parts = [pa.concat_tables(group)] if are_small else group
            folded: list[FoldedChanges[F]] = [self._engine.fold(part, self._plan) for part in parts]
            frame = self._engine.frames.concat([one.frame for one in folded])
            counts = sum((one.counts for one in folded), Counts())
            rows, size = sum(one.rows for one in folded), sum(one.size for one in folded)
            self.counts += counts
            yield FoldedChanges(frame, merge_facts(one.facts for one in folded), counts, rows, size)

    def _group_partitions(self) -> Iterator[list[pa.Table]]:
        """Whole partitions, in groups of limited size."""
        group: list[pa.Table] = []
        for number in range(SPILL_PARTITIONS):
            batches = self._spill_files.read_partition(number)
            group += [pa.Table.from_batches(batches)] if batches else []
            if sum(part.nbytes for part in group) >= LOAD_BYTES:
                yield group
                group = []
        if group:
            yield group


def _make_orphan_error(lane: str, why: str) -> Fatal:
    step = f"Start from scratch: `replicator drop {lane}`, then repeat the command."
    return Fatal(f"the spill files of lane {lane} {why}", next_step=step)


def _get_frame(request: WriteRequest[Any]) -> pa.Table:
    return request.write.folded.frame


def _wrap_os_errors(act: Any) -> Any:
    try:
        return act()
    except OSError as error:
        raise EnvironmentProblem(
            f"the spill files of a new target cannot be written or read ({error.strerror or error})",
            next_step="Free disk space in the `state` folder of the config, and repeat the command: it resumes.",
        ) from error
