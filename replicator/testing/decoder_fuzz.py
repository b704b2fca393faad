"""Decodes mutated records: all must be accounted for, and none may change the result of another."""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET, OP, PARTITION, RAW, TOPIC, Op, changes_schema, sequence_columns
from replicator.domain.errors import Fatal, Reject, RejectCode
from replicator.domain.table import TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE, Decoder

from .mutations import Mutation, alter_bytes

INPUTS = int(os.environ.get("REPLICATOR_INPUTS", "2000"))
"""The number of mutated records per suite."""

PROGRESS = os.environ.get("REPLICATOR_PROGRESS")
"""A file for the progress as JSON, written per batch. The records of the batch are stored next to it (`.trying`)."""

CODES = {value for name, value in vars(RejectCode).items() if name.isupper()}
BATCH = min(1000, max(200, INPUTS // 8))
ALONE_RECORDS = 50
"""One of this number of records is also decoded alone."""
LAYOUTS = 3
"""The number of new layouts in a batch that are learned. Each needs milliseconds."""
SECONDS = 300.0
"""Maximum seconds of a batch; one is normal."""

S = TypeVar("S", bound=Sequence[Any])
PATIENCE = 30.0
"""Maximum seconds of the search for the fewest records."""
Record = Mapping[str, Any]
Seed = tuple[TableSpec, pa.Table]
"""A table, and good records of it."""


@dataclass
class DecoderFuzz:
    """Decodes mutated copies of good records. `counts` has the results:

    - `ignored` and `refused`: when they were routed.
    - `changed` (to at least one change) and `rejected`: when the others were decoded as the original table.
    """

    decoder: Decoder
    seeds: Sequence[Seed]
    mutate: Mutation
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self._other: Decoder = pickle.loads(pickle.dumps(self.decoder))  # noqa: S301
        self._records = [run.to_pylist() for _, run in self.seeds]

    def run(self, inputs: int) -> None:
        """Raises AssertionError with the fewest records that show the fault."""
        while self.counts["inputs"] < inputs:
            which = self._rng.randrange(len(self.seeds))
            table = self.seeds[which][0]
            records = self._make_batch(which, min(BATCH, inputs - self.counts["inputs"]))
            note_progress(records, self.counts)
            if PROGRESS:
                faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                self._check_records(table, records)
            except Exception as error:
                raise AssertionError(self._describe_failure(table, records, error)) from error
            finally:
                if PROGRESS:
                    faulthandler.cancel_dump_traceback_later()

    def _describe_failure(self, table: TableSpec, records: Sequence[Record], error: Exception) -> str:
        few = find_smallest(records, lambda some: self._is_failing(table, some, error))
        said = "\n".join(repr({name: record[name] for name in ("key", "value", "headers")}) for record in few)
        return f"table {table.name}, seed {self.seed}: {error!r}\nfewest records:\n{said}"

    def _is_failing(self, table: TableSpec, records: Sequence[Record], as_did: Exception) -> bool:
        try:
            DecoderFuzz(self.decoder, self.seeds, self.mutate, 0)._check_records(table, records, alone=1)
        except Exception as error:
            return type(error) is type(as_did) and str(error)[:30] == str(as_did)[:30]
        return False

    def _make_batch(self, which: int, count: int) -> list[Record]:
        good, rng = self._records[which], self._rng
        return [self._make_record(rng.choice(good), offset) for offset in range(1000, 1000 + count)]

    def _make_record(self, good: Record, offset: int) -> Record:
        rng = self._rng
        made = {**good, "partition": 0, "offset": offset, "value": good["value"] and self.mutate(good["value"], rng)}
        if good["key"] and rng.random() < 0.2:
            made["key"] = self.mutate(good["key"], rng)
        if good["headers"] and rng.random() < 0.02:
            made["headers"] = [{**h, "value": h["value"] and alter_bytes(h["value"], rng)} for h in good["headers"]]
        return made

    def _check_records(self, table: TableSpec, records: Sequence[Record], *, alone: int = ALONE_RECORDS) -> None:
        raw = pa.Table.from_pylist(list(records), RAW)
        routes, changes = self._decode_all(self.decoder, raw, table)
        halves = [raw.take(pa.array(range(first, raw.num_rows, 2), pa.int64())) for first in (0, 1)]
        parts = [self._decode_all(self._other, half, table) for half in halves]
        interleaved = pa.concat_tables([part for part, _ in parts])
        evens = (raw.num_rows + 1) // 2
        back = [place // 2 + (place % 2) * evens for place in range(raw.num_rows)]
        check_routes(routes, interleaved.take(pa.array(back, pa.int64())), raw, changes)
        others = pa.concat_tables([part for _, part in parts]).sort_by(OFFSET)
        assert is_same(changes, others), f"decoded differently among other records: {find_difference(changes, others)}"
        for place in range(self._rng.randrange(alone), raw.num_rows, alone):
            self._check_alone(raw.slice(place, 1), routes.slice(place, 1), changes, table)
        self._learn_layouts(raw, routes)
        self._count_results(routes, changes)

    def _check_alone(self, raw: pa.Table, route: pa.Table, changes: pa.Table, table: TableSpec) -> None:
        routed, decoded = self._decode_all(self._other, raw, table)
        beside = changes.filter(pc.equal(changes[OFFSET], raw["offset"][0]))
        check_routes(route, routed, raw, decoded)
        assert is_same(decoded, beside), f"decoded differently alone: {find_difference(decoded, beside)}"

    def _decode_all(self, decoder: Decoder, raw: pa.Table, table: TableSpec) -> tuple[pa.Table, pa.Table]:
        """The routes and the changes of the records. Both contain every record."""
        routes, envelope = decoder.route(raw), decoder.envelope(raw)
        for frame, schema in ((routes, ROUTE), (envelope, ENVELOPE)):
            assert frame.schema.equals(schema) and frame.num_rows == raw.num_rows, schema
            frame.validate(full=True)
        for row in routes.to_pylist():
            assert sum(row[name] is not None for name in ("fingerprint", "ignored", "error")) == 1, row
            assert row["fingerprint"] is None or row["table"] is not None, row
        check_errors(routes["error"])
        changes = decoder.decode(raw, table)
        check_changes(changes, table, raw)
        return routes, changes

    def _learn_layouts(self, raw: pa.Table, routes: pa.Table) -> None:
        """Records of new layouts are decoded with their own table, if it can be learned."""
        pairs = list(zip(routes["table"].to_pylist(), routes["fingerprint"].to_pylist(), strict=True))
        known = {(table.name, table.fingerprint) for table, _ in self.seeds}
        new = [pair for pair in dict.fromkeys(pairs) if pair[1] is not None and pair not in known]
        for name, fingerprint in new[:LAYOUTS]:
            run = raw.filter(pa.array([pair == (name, fingerprint) for pair in pairs]))
            try:
                table = self.decoder.learn(run, name, fingerprint)
            except Fatal:
                self.counts["layouts refused"] += 1
                continue
            check_changes(self.decoder.decode(run, table), table, run)
            self.counts["layouts learnt"] += 1

    def _count_results(self, routes: pa.Table, changes: pa.Table) -> None:
        failed = set(changes.filter(changes[ERROR].is_valid())[OFFSET].to_pylist())
        fates: Counter[str] = Counter()
        for offset, row in zip(dict.fromkeys(changes[OFFSET].to_pylist()), routes.to_pylist(), strict=True):
            if row["fingerprint"] is None:
                fates["ignored" if row["ignored"] else "refused"] += 1
            else:
                fates["rejected" if offset in failed else "changed"] += 1
        assert fates.total() == routes.num_rows
        self.counts += fates
        self.counts["inputs"] += routes.num_rows


def check_errors(errors: pa.ChunkedArray) -> None:
    """Each error is a reject with a known code."""
    for error in pc.unique(errors.drop_null()).to_pylist():
        assert Reject.parse(error).code in CODES, error


def check_changes(changes: pa.Table, table: TableSpec, raw: pa.Table) -> None:
    """A valid changes frame of `table` with every record, in order."""
    assert changes.schema.equals(changes_schema(table))
    changes.validate(full=True)
    came = zip(*(changes[name].to_pylist() for name in (TOPIC, PARTITION, OFFSET)), strict=True)
    sent = zip(*(raw[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    assert list(dict.fromkeys(came)) == list(sent), "records are missing, or out of order"
    check_errors(changes[ERROR])
    good = changes.filter(changes[ERROR].is_null())
    assert set(pc.unique(good[OP]).to_pylist()) <= set(Op)
    assert all(good[name].null_count == 0 for name in sequence_columns(table.sequence)), "a change without a sequence"
    rows = good.filter(pc.not_equal(good[OP], Op.TRUNCATE.value))
    assert all(rows[key].null_count == 0 for key in table.keys), "a change without a key"


def check_routes(routes: pa.Table, others: pa.Table, raw: pa.Table, changes: pa.Table) -> None:
    """The records have the same routes in both frames, with two exceptions.

    A record of another table may be rejected by routing or by decoding, depending on other records, because routing
    does not read rows. The schema of a record without a key may depend on other records, too.
    """
    silent = set(raw.filter(raw["key"].is_null())["offset"].to_pylist() if raw["key"].null_count < raw.num_rows else ())
    failed = set(changes.filter(changes[ERROR].is_valid())[OFFSET].to_pylist())
    for offset, one, other in zip(raw["offset"].to_pylist(), routes.to_pylist(), others.to_pylist(), strict=True):
        unsure = {"fingerprint": None} if offset in silent or raw.num_rows == 1 else {}
        a, b = ({**route, **unsure, "error": get_code(route["error"])} for route in (one, other))
        late = offset in failed and None in (a["error"], b["error"]) and not (a["ignored"] or b["ignored"])
        assert a == b or late, f"routed differently among other records: {a} and {b}"


def is_same(a: pa.Table, b: pa.Table) -> bool:
    """True if the rows are equal. Rejects are compared by position and code only."""
    if a.equals(b):
        return True
    return list(to_texts(a)) == list(to_texts(b))


def find_difference(a: pa.Table, b: pa.Table) -> str:
    """The first different rows."""
    pairs = zip(to_texts(a), to_texts(b), strict=False)
    return next((f"{x}\nand\n{y}" for x, y in pairs if x != y), f"{a.num_rows} and {b.num_rows} rows")


def to_texts(frame: pa.Table) -> Iterator[str]:
    """Rows as text, so that NaN equals NaN. The values of rejects are left out, because they may be out of range."""
    good = iter(frame.filter(frame[ERROR].is_null()).to_pylist())
    for row in frame.select([TOPIC, PARTITION, OFFSET, ERROR]).to_pylist():
        yield repr(next(good) if row[ERROR] is None else [*list(row.values())[:3], get_code(row[ERROR])])


def get_code(error: str | None) -> str | None:
    """The code of a reject. The sentence may depend on other records, which can change how the record is read."""
    kind = error and Reject.parse(error).code
    return RejectCode.MALFORMED if kind == RejectCode.TOO_LARGE else kind


def find_smallest(records: Sequence[Record], fails: Callable[[Sequence[Record]], bool]) -> Sequence[Record]:
    """Few records that still fail, with their values cut as far as possible."""
    end = time.monotonic() + PATIENCE
    records = find_fewest(records, lambda some: time.monotonic() < end and fails(some))
    for place in range(len(records)):
        records = truncate_value(records, place, lambda some: time.monotonic() < end and fails(some))
    return records


def truncate_value(records: Sequence[Record], place: int, fails: Callable[[Sequence[Record]], bool]) -> Sequence[Record]:
    """The records, with a shorter value of one of them."""

    def having(value: bytes) -> Sequence[Record]:
        return [*records[:place], {**records[place], "value": value}, *records[place + 1 :]]

    return having(find_fewest(records[place]["value"] or b"", lambda value: fails(having(value))))


def find_fewest(items: S, fails: Callable[[S], bool]) -> S:
    """The items without slices that are not needed to fail."""
    size = len(items) // 2
    while size:
        start = 0
        while start < len(items):
            rest: Any = items[:start] + items[start + size :]  # type: ignore[operator]
            if rest and fails(rest):
                items = rest
            else:
                start += size
        size //= 2
    return items


def note_progress(records: Sequence[Record], counts: Mapping[str, int], *, done: bool = False) -> None:
    """Write the counts and the next records, so that a crash of the process can be reproduced."""
    if PROGRESS is None:
        return
    Path(PROGRESS).write_text(json.dumps({**counts, "done": done}))
    Path(PROGRESS + ".trying").write_bytes(pickle.dumps(list(records)))
