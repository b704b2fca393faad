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
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OFFSET, OP, PARTITION, RAW, TOPIC, Op, changes_schema, sequence_columns
from replicator.domain.errors import Fatal, Reject, RejectCode
from replicator.domain.table import TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE, Decoder

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
                few = find_smallest(records, partial(self._is_failing, table, error))
                lines = "\n".join(repr({name: record[name] for name in ("key", "value", "headers")}) for record in few)
                failure = f"table {table.name}, seed {self.seed}: {error!r}\nfewest records:\n{lines}"
                raise AssertionError(failure) from error
            finally:
                if PROGRESS:
                    faulthandler.cancel_dump_traceback_later()

    def _is_failing(self, table: TableSpec, as_did: Exception, records: Sequence[Record]) -> bool:
        try:
            DecoderFuzz(self.decoder, self.seeds, self.mutate, 0)._check_records(table, records, alone=1)
        except Exception as error:
            return type(error) is type(as_did) and str(error)[:30] == str(as_did)[:30]
        return False

    def _make_batch(self, which: int, count: int) -> list[Record]:
        rng, records = self._rng, list[Record]()
        for offset in range(1000, 1000 + count):
            good = rng.choice(self._records[which])
            record = {**good, "partition": 0, "offset": offset, "value": good["value"] and self.mutate(good["value"], rng)}
            if good["key"] and rng.random() < 0.2:
                record["key"] = self.mutate(good["key"], rng)
            if good["headers"] and rng.random() < 0.02:
                record["headers"] = [{**h, "value": h["value"] and alter_bytes(h["value"], rng)} for h in good["headers"]]
            records.append(record)
        return records

    def _check_records(self, table: TableSpec, records: Sequence[Record], *, alone: int = ALONE_RECORDS) -> None:
        raw = pa.Table.from_pylist(list(records), RAW)
        routes, changes = self._decode_all(self.decoder, raw, table)
        halves = [raw.take(pa.array(range(first, raw.num_rows, 2), pa.int64())) for first in (0, 1)]
        parts = [self._decode_all(self._other, half, table) for half in halves]
        interleaved = pa.concat_tables([part for part, _ in parts])
        evens = (raw.num_rows + 1) // 2
        back = [number // 2 + (number % 2) * evens for number in range(raw.num_rows)]
        check_routes(routes, interleaved.take(pa.array(back, pa.int64())), raw, changes)
        others = pa.concat_tables([part for _, part in parts]).sort_by(OFFSET)
        assert is_same(changes, others), f"decoded differently among other records: {find_difference(changes, others)}"
        for number in range(self._rng.randrange(alone), raw.num_rows, alone):
            one = raw.slice(number, 1)
            routed, decoded = self._decode_all(self._other, one, table)
            expected = changes.filter(pc.equal(changes[OFFSET], one["offset"][0]))
            check_routes(routes.slice(number, 1), routed, one, decoded)
            assert is_same(decoded, expected), f"decoded differently alone: {find_difference(decoded, expected)}"
        self._learn_layouts(raw, routes)
        failed = set(changes.filter(changes[ERROR].is_valid())[OFFSET].to_pylist())
        results: Counter[str] = Counter()
        for offset, row in zip(dict.fromkeys(changes[OFFSET].to_pylist()), routes.to_pylist(), strict=True):
            if row["fingerprint"] is None:
                results["ignored" if row["ignored"] else "refused"] += 1
            else:
                results["rejected" if offset in failed else "changed"] += 1
        assert results.total() == routes.num_rows
        self.counts += results
        self.counts["inputs"] += routes.num_rows

    def _decode_all(self, decoder: Decoder, raw: pa.Table, table: TableSpec) -> tuple[pa.Table, pa.Table]:
        """The routes and the changes of the records. Both contain every record."""
        routes, envelope = decoder.route(raw), decoder.envelope(raw)
        for frame, schema in ((routes, ROUTE), (envelope, ENVELOPE)):
            assert frame.schema.equals(schema) and frame.num_rows == raw.num_rows, schema
            frame.validate(full=True)
        check_results(routes)
        check_errors(routes["error"])
        changes = decoder.decode(raw, table)
        check_changes(changes, table, raw)
        return routes, changes

    def _learn_layouts(self, raw: pa.Table, routes: pa.Table) -> None:
        """Records of new layouts are decoded with their own table, if it can be learned."""
        pairs = list(zip(routes["table"].to_pylist(), routes["fingerprint"].to_pylist(), strict=True))
        seen = {(table.name, table.fingerprint) for table, _ in self.seeds}
        new = [pair for pair in dict.fromkeys(pairs) if pair[1] is not None and pair not in seen]
        for name, fingerprint in new[:LAYOUTS]:
            run = raw.filter(pa.array([pair == (name, fingerprint) for pair in pairs]))
            try:
                table = self.decoder.learn(run, name, fingerprint)
            except Fatal:
                self.counts["layouts refused"] += 1
                continue
            check_changes(self.decoder.decode(run, table), table, run)
            self.counts["layouts learnt"] += 1


def check_errors(errors: pa.ChunkedArray) -> None:
    """Each error is a reject with a known code."""
    for error in pc.unique(errors.drop_null()).to_pylist():
        assert Reject.parse(error).code in CODES, error


def check_results(routes: pa.Table) -> None:
    """Each record has one result: a table with its fingerprint, a kind to ignore, or an error."""
    for row in routes.to_pylist():
        assert sum(row[name] is not None for name in ("fingerprint", "ignored", "error")) == 1, row
        assert row["fingerprint"] is None or row["table"] is not None, row


def check_positions(changes: pa.Table, raw: pa.Table) -> None:
    """Every record became at least one row, in order."""
    decoded_positions = zip(*(changes[name].to_pylist() for name in (TOPIC, PARTITION, OFFSET)), strict=True)
    sent = zip(*(raw[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    assert list(dict.fromkeys(decoded_positions)) == list(sent), "records are missing, or out of order"


def check_changes(changes: pa.Table, table: TableSpec, raw: pa.Table) -> None:
    """A valid changes frame of `table` with every record, in order."""
    assert changes.schema.equals(changes_schema(table))
    changes.validate(full=True)
    check_positions(changes, raw)
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
    records = find_fewest(records, lambda candidates: time.monotonic() < end and fails(candidates))
    for number in range(len(records)):
        records = truncate_value(records, number, lambda candidates: time.monotonic() < end and fails(candidates))
    return records


def truncate_value(records: Sequence[Record], number: int, fails: Callable[[Sequence[Record]], bool]) -> Sequence[Record]:
    """The records, with a shorter value of one of them."""

    def having(value: bytes) -> Sequence[Record]:
        return [*records[:number], {**records[number], "value": value}, *records[number + 1 :]]

    return having(find_fewest(records[number]["value"] or b"", lambda value: fails(having(value))))


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


# Mutations of good records: bytes, JSON and CSV lines, altered where a reader may fail.
#
# Every function gets the record and a random generator, and returns the altered record. The same seed gives the same
# result.

Mutation = Callable[[bytes, Random], bytes]

LIMITS = tuple(
    str(sign * 2**bits + off) for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64) for sign in (1, -1) for off in (-1, 0, 1)
)
NUMBERS = (
    *LIMITS, "0", "-0", "-0.0", "1e400", "-1e400", "1e-400", "1e9", "1E+2", "0.1", "3.4028236e38", "9" * 40, "-" + "9" * 400,
    "1." + "0" * 60, "0." + "3" * 60, "1e2147483648", "253402300800000", "-62135596800001", "253402300800000000",
)  # fmt: skip
"""JSON numbers, most of them just inside or outside the range of some type."""
TEXTS = (
    "", " ", "a", "é☃\U0001f600", "\x00", "a\x00b", "\x7f\x80", "\u2028", "\ufeff1", "null", "NULL", "true", "t", "f",
    "2", "0x10",
    "1_000", " 1", "1 ", "+1", "١", "NaN", "Infinity", "-Infinity", "nan", "inf", "1e5", "1,5", "0.105",
    "12345678901234567890.5",
    "0000-00-00", "0000-00-00 00:00:00", "0001-01-01", "9999-12-31 23:59:59.999999", "10000-01-01", "2024-02-30",
    "2023-02-29",
    "2024-02-29", "2024-02-29T24:00:00", "2024-02-29 23:59:60", "2024-02-29 23:59:59.1234567", "2024-02-29T10:00:00+14:00",
    "2024-02-29T10:00:00Z", "2024-02-29 10:00:00 Europe/Paris", "-00:00:01", "23:59:59.999999", "838:59:59", "25:00:00",
    "24:00:00",
    "AA==", "A", "AA=", "=", "AA==\n", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "__debezium_unavailable_value", "[1",
    "{}",
    '["1","2"]', '{"a":', "int64", "decimal(10,2)", "decimal(99,2)", "struct", "io.debezium.time.MicroTimestamp",
    "x" * 70_000,
    "c", "u", "d", "r", "t", "m", "I", "U", "D", "T", "INSERT", "delete",
)  # fmt: skip
"""Texts: numbers, times, placeholders and codes, right and nearly right."""
ODD = (
    rb'"\ud800"', rb'"\udc00\ud800"', rb'"a\ud83d"', rb'"\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"',
    b'"\x01"', b'"\\x"',
    b'"', b"01", b"1.", b".5", b"+1", b"NaN", b"Infinity", b"-", b"1e", b"nul", b"TRUE", b"'a'", b"", b" ", b"1 2",
    b"{}", b"[]",
    b"{,}", b"[,]", b"[1,]", b'{"a":1,}', b'{"a":1,"a":2}', b'{1:2}', b"\xef\xbb\xbf1", b"//", b"]", b"}",
    b'"\\ud800\\u0041"',
    *(b"[" * n + b"]" * n for n in (9, 62, 63, 64, 65, 500, 3000)), b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 5000,
)  # fmt: skip
"""Replacements of a JSON value, most of them invalid."""
TOKENS = (
    b"null", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\u", b"\x00", b"\xff", b"\xf0\x9f", b"\xef\xbb\xbf",
    b"-", b"1e9",
    b"\n", b"\r\n", b"true", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xfe\xff\xff\xff\x0f", b"\x80" * 12, b"\x01",
    b"\x02",
)  # fmt: skip
QUOTES = (b'"', b'""', b'"""', b'"a', b'a"', b'"a"b', b'"a,\r\nb"', b"\r", b"\n", b"\x00", b"\xff", b"\\")
RAW_MARK = "@raw{}@"
AT_PAYLOAD = 0.92
"""The probability of altering the payload of a document with a schema. Another schema is another table, which is
learned."""


NESTED_SHARE = 0.6
"""The probability of descending into a container: rows are deeper in a document than the metadata of their table."""


def alter_bytes(value: bytes, rng: Random) -> bytes:
    """Flip bits, cut, double and move ranges, and insert tokens."""
    text = bytearray(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(text):
            text[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del text[at : at + rng.choice((1, 1, 2, 9, 40))]
        elif kind == 2:
            text[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            text[at:at] = text[at : at + rng.choice((1, 4, 30))] * rng.choice((1, 2))
        elif kind == 4 and rng.random() < 0.3:
            del text[at:]
        else:
            text[at : at + 1] = bytes((rng.randrange(256),))
    return bytes(text)


def alter_json(value: bytes, rng: Random) -> bytes:
    """Replace, remove, double, rename or nest values. Sometimes, and if it is not JSON, alter bytes."""
    if rng.random() < 0.12:
        return alter_bytes(value, rng)
    try:
        document = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return alter_bytes(value, rng)
    raw: list[bytes] = []
    holder = [document]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at: Any = holder
        key: Any = 0
        while isinstance(at[key], dict | list) and at[key] and rng.random() < 0.9:
            at, key = at[key], _choose_key(at[key], rng)
        _alter_value(at, key, rng, raw)
    out = msgspec.json.encode(holder[0])
    for number, token in enumerate(raw):
        out = out.replace(b'"' + RAW_MARK.format(number).encode() + b'"', token)
    return out


def _choose_key(container: Any, rng: Random) -> Any:
    if isinstance(container, list):
        return rng.randrange(len(container))
    if "payload" in container and rng.random() < AT_PAYLOAD:
        return "payload"
    deep = [key for key, value in container.items() if value and isinstance(value, dict | list)]
    return rng.choice(deep if deep and rng.random() < NESTED_SHARE else list(container))


def _alter_value(at: Any, key: Any, rng: Random, raw: list[bytes]) -> None:
    value = at[key]
    kind = rng.randrange(12)
    if kind <= 2 or not (kind <= 8 or isinstance(at, dict) or len(at) > 1):
        at[key] = _add_raw(rng.choice(NUMBERS).encode(), raw)
    elif kind <= 4:
        at[key] = rng.choice(TEXTS)
    elif kind == 5 and rng.random() < 0.5:
        at[key] = _add_raw(rng.choice(ODD), raw)
    elif kind == 6:
        at[key] = rng.choice((None, True, False, [], {}, 0, 1))
    elif kind == 7:
        at[key] = rng.choice(([value], {"a": value}, [value, value], {"value": value, "scale": 2}))
    elif kind == 8:
        at[key] = _change_representation(value)
    elif kind == 9 and isinstance(at, dict):
        del at[key]
    elif kind == 10 and isinstance(at, dict):
        names = ("", '"', "\\", "\n", "é", "k" * 300, "id", key.swapcase(), f"{key}_", rng.choice(list(at)))
        at[rng.choice(names)] = at.pop(key)
    elif isinstance(at, dict):
        twin = msgspec.json.encode(rng.choice((value, None, 1, "2"))) + b"," + msgspec.json.encode(key) + b":"
        at[key] = _add_raw(twin + msgspec.json.encode(value), raw)
    else:
        at.extend(at[: rng.choice((1, 2, 40))])


def _add_raw(token: bytes, raw: list[bytes]) -> str:
    raw.append(token)
    return RAW_MARK.format(len(raw) - 1)


def _change_representation(value: Any) -> Any:
    """A number as text, text as a number, anything else as JSON text."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value.encode("utf-8", "replace"))
        except (msgspec.MsgspecError, RecursionError):
            return value + value
    return str(value) if isinstance(value, int | float) else msgspec.json.encode(value).decode()


def alter_csv(value: bytes, rng: Random) -> bytes:
    """Replace, remove, double, quote and unquote cells; or alter bytes."""
    if rng.random() < 0.15:
        return alter_bytes(value, rng)
    cells = value.split(b",")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(cells))
        kind = rng.randrange(10)
        if kind <= 2:
            cells[at] = rng.choice(NUMBERS).encode()
        elif kind <= 4:
            cells[at] = rng.choice(TEXTS).encode()
        elif kind == 5:
            cells[at] = rng.choice(QUOTES)
        elif kind == 6:
            cells[at] = b'"' + cells[at].replace(b'"', b'""') + b'"'
        elif kind == 7 and len(cells) > 1:
            del cells[at]
        elif kind == 8:
            cells.insert(at, rng.choice((b"", cells[at], b"x" * 70_000)))
        else:
            cells[at], cells[0] = cells[0], cells[at]
    return b",".join(cells)
