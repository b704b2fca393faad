"""Payload offsets found by routing are used by decoding."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.debezium_events import ID, encode_with_schema, make_column, make_envelope_schema, make_payload, make_raw_records

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.json import schema_frames
from adapters.decoders.json.schema_frames import CachedFrames

SCHEMA = make_envelope_schema([ID, make_column("name", "string")])
DEPTH = 64


def values(*names: str) -> pa.Array:
    return pa.array([encode_with_schema(SCHEMA, make_payload(after={"id": 1, "name": name})) for name in names], pa.binary())


@pytest.fixture
def count_values_searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values each search for payloads was given."""
    counts: list[int] = []
    search = schema_frames.find_frames

    def count_values(some: pa.Array, depth: int) -> schema_frames.SchemaFrames:
        counts.append(len(some))
        return search(some, depth)

    monkeypatch.setattr(schema_frames, "find_frames", count_values)
    return counts


def payloads(found: schema_frames.SchemaFrames) -> list[bytes]:
    return [payload for group in found.groups for payload in group.payloads()]


def test_same_values_are_searched_once(count_values_searched: list[int]) -> None:
    once, some = CachedFrames(DEPTH), values("a", "b", "c")
    first = once.find(some)
    assert once.find_again(some) is first and count_values_searched == [3]


def test_other_values_in_the_same_memory_are_searched(count_values_searched: list[int]) -> None:
    once, some = CachedFrames(DEPTH), values("a", "b", "c", "d")
    once.find(some.slice(0, 2))
    assert b'"b"' in payloads(once.find_again(some.slice(1, 2)))[0]
    assert len(payloads(once.find_again(some.slice(0, 3)))) == 3
    assert count_values_searched == [2, 2, 3]


def test_result_is_dropped_after_its_second_use(count_values_searched: list[int]) -> None:
    once, some = CachedFrames(DEPTH), values("a")
    once.find(some)
    before = pa.total_allocated_bytes()
    once.find_again(some)
    del some
    assert pa.total_allocated_bytes() < before
    once.find(values("b"))
    before = pa.total_allocated_bytes()
    once.clear()
    assert pa.total_allocated_bytes() < before
    assert count_values_searched == [1, 1]


def test_result_of_several_schemas_is_not_kept(count_values_searched: list[int]) -> None:
    once = CachedFrames(DEPTH)
    some = pa.concat_arrays([values("a"), pa.array([b'{"plain": 1}', b"none"], pa.binary())])
    assert once.find(some).errors.keys() == once.find_again(some).errors.keys() == {2}
    assert count_values_searched == [3, 3]


def test_changes_do_not_depend_on_earlier_routing() -> None:
    frame = make_raw_records(values("a", "b", "c").to_pylist())
    decoder = DebeziumJsonDecoder()
    fingerprint = decoder.route(frame)["fingerprint"][0].as_py()
    table = decoder.learn(frame, "public.t", fingerprint)
    decoder.route(frame)
    changes = decoder.decode(frame, table)
    assert changes.equals(DebeziumJsonDecoder().decode(frame, table)) and changes["name"].to_pylist() == ["a", "b", "c"]
