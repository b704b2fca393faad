"""Events as programs pass them: conversion of their values, refusals, limits and retries."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.domain.errors import Retryable
from replicator.domain.events import EventLimits, InvalidEvent, NewEvent, make_event, measure_depth, read_json, to_texts
from replicator.testing.stores_contract import FakeEventStore
from replicator.wiring.adapters import EventEmitter

LIMITS = EventLimits()
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


class Away(FakeEventStore):
    """Stores the events of the first call, and never says so."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.asked: list[NewEvent] = []

    def append(self, events):
        self.asked += events
        done = super().append(events)
        if self.failures:
            self.failures -= 1
            raise Retryable("no answer")
        return done


def test_values_become_texts():
    said = {"text": "1.10", "none": None, "yes": True, "number": 1.5, "big": 2**70, "list": [1, None], "map": {"a": "ü"}}
    assert to_texts("event_data", said) == {
        "text": "1.10",
        "none": None,
        "yes": "true",
        "number": "1.5",
        "big": str(2**70),
        "list": "[1,null]",
        "map": '{"a":"ü"}',
    }


@given(value=st.dictionaries(TEXT, JSON, max_size=3))
def test_values_and_json_text_give_the_same_event(value):
    texts = to_texts("event_data", value)
    assert read_json("event_data", msgspec.json.encode(value).decode()) == texts
    for name, one in value.items():
        kept = texts[name]
        assert kept == one if one is None or isinstance(one, str) else msgspec.json.decode(kept) == one


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "text",
        {1: "x"},
        {None: "x"},
        {"a": float("nan")},
        {"a": [float("inf")]},
        {"a": Decimal(1)},
        {"a": datetime.now(UTC)},
        {"a": b"x"},
        {"a": {"b": {1}}},
        {"a": {1: 2}},
        {"a\0": "x"},
        {"a": ["\0"]},
        {"a": ["\ud800"]},
        {"\ud800": "x"},
    ],
)
def test_value_without_json_form_is_refused(value):
    with pytest.raises(InvalidEvent, match="event_data"):
        to_texts("event_data", value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ('{"a": 1', "not a JSON object"),
        ('{"a": ["\\ud800"]}', "not a JSON object"),
        ('{"a": ["\\u0000"]}', "NUL"),
        ('{"a": {"b": "\\\\\\u0000"}}', "NUL"),
    ],
)
def test_invalid_json_is_refused(text, said):
    with pytest.raises(InvalidEvent, match=said):
        read_json("event_data", text)


def test_json_text_is_stored_unchanged():
    assert read_json("event_data", '{"a" : [1.10, 1e400], "b": "\\n", "c": null, "d": ["\\\\u0000"]}') == {
        "a": "[1.10,1e400]",
        "b": "\n",
        "c": None,
        "d": '["\\\\u0000"]',
    }


def test_recursive_value_is_refused():
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidEvent, match="nested"):
        to_texts("event_data", {"a": endless})


@pytest.mark.parametrize("name", ["aggregate_id", "aggregate_type", "event_type", "event_id"])
@pytest.mark.parametrize("value", [None, "", " \t", 7, b"x", "a\0", "\ud800", "x" * 501, "ü" * 251])
def test_invalid_ids_are_refused(name, value):
    said = {"aggregate_id": "a", "aggregate_type": "t", "event_type": "e", "event_id": "i", "event_data": {}, name: value}
    with pytest.raises(InvalidEvent, match=name):
        NewEvent(**said)


@pytest.mark.parametrize(("kind", "fits"), [("x" * 240, True), ("x" * 241, False), ("ü" * 40, True), ("ü" * 41, False)])
def test_aggregate_type_must_fit_into_a_folder_name(kind, fits):
    """A folder name needs three bytes for each byte of a special character."""
    if fits:
        assert make_event("a", kind, "e", {}).aggregate_type == kind
    else:
        with pytest.raises(InvalidEvent, match="partition"):
            make_event("a", kind, "e", {})
    with pytest.raises(InvalidEvent, match="partition"):
        make_event("a", "__HIVE_DEFAULT_PARTITION__", "e", {})


@pytest.mark.parametrize("version", [-1, 1.0, "1", True])
def test_invalid_expected_versions_are_refused(version):
    with pytest.raises(InvalidEvent, match="expected_version"):
        make_event("a", "t", "e", {}, expected_version=version)


def test_limits_are_exact():
    emitting = EventEmitter(FakeEventStore(), EventLimits(message_bytes=20, entries=2, depth=2))
    fits = {"event_id": "i"}  # With the ids 4 bytes.
    assert emitting.emit([make_event("a", "t", "e", {"k": "ü" * 7}, {"m": None}, **fits)])[0].is_new
    for data, said in (
        ({"k": "ü" * 8}, "20 bytes"),
        ({"a": "", "b": "", "c": ""}, "2 entries"),
        ({"a": "[[[]]]"}, "2 levels"),
    ):
        with pytest.raises(InvalidEvent, match=said):
            emitting.emit([make_event("a", "t", "e", data, event_id="other")])
    assert emitting.emit([make_event("a", "t", "e", {"a": '["[[["]'}, event_id="j")])[0].is_new


def test_depth_counts_brackets_outside_of_strings():
    assert [measure_depth(t) for t in ("", "x[[", "[]", '{"a":[1]}', '["[[",[]]', r'["\"[[["]')] == [0, 0, 1, 2, 2, 1]


def test_retryable_append_is_repeated_with_the_same_id():
    store = Away(failures=2)
    (done,) = EventEmitter(store, LIMITS).emit([make_event("a", "t", "e", {}, expected_version=0)])
    assert (len(store.events), done.event.event_version) == (1, 1)
    assert {new.event_id for new in store.asked} == {done.event.event_id}
    assert [new.has_new_id for new in store.asked] == [True, False, False]


def test_append_fails_after_its_patience():
    with pytest.raises(Retryable):
        EventEmitter(Away(failures=99), LIMITS, patience=0.2).emit([make_event("a", "t", "e", {})])
