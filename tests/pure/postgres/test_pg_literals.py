"""Literals of slices and of many rows equal those of the whole."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.postgres.literals import ARRAY_FORM, JSON_FORM, distant_date, distant_instant, json_text, text_column
from adapters.postgres.types import ColumnConversion
from adapters.sinks.postgres.row_provider import rows_to_json

POINT = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])
COLUMNS = [
    (pa.array([b"ab", None, b"", b"\x00\xff"]), "plain"),
    (pa.array([["a"], None, [], ["b", None]]), ARRAY_FORM),
    (pa.array([{"x": 1, "tags": ["a"]}, None, {"x": None, "tags": None}, {"x": 4, "tags": []}], POINT), JSON_FORM),
    (pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int32())), JSON_FORM),
    (pa.array([[{"x": 1, "tags": ["a"]}], None, [], [None]], pa.list_(POINT)), JSON_FORM),
    (pa.array(["a", None, "b", "a"]).dictionary_encode(), "plain"),
]


@pytest.mark.parametrize(("column", "form"), COLUMNS)
def test_literals_of_slices_equal_those_of_the_whole(column: pa.Array, form: str) -> None:
    whole = text_column(column, form).to_pylist()
    assert whole[1] is None
    for start in range(4):
        for end in range(start, 5):
            assert text_column(column.slice(start, end - start), form).to_pylist() == whole[start:end]


def test_literals_of_each_form() -> None:
    found = [text_column(column, form).to_pylist() for column, form in COLUMNS]
    assert found == [
        ["\\x6162", None, "\\x", "\\x00ff"],
        ['{"a"}', None, "{}", '{"b",NULL}'],
        ['{"x":1,"tags":["a"]}', None, '{"x":null,"tags":null}', '{"x":4,"tags":[]}'],
        ['{"a":1}', None, "{}", '{"b":null}'],
        ['[{"x":1,"tags":["a"]}]', None, "[]", "[null]"],
        ["a", None, "b", "a"],
    ]


@given(st.lists(st.text() | st.none()))
def test_json_text_is_json(texts: list[str | None]) -> None:
    import json

    assert [json.loads(t) for t in json_text(pa.array(texts, pa.string())).to_pylist()] == texts


@pytest.mark.parametrize(
    ("days", "text"),
    [(2_932_897, "10000-01-01"), (-719_163, "0001-12-31 BC"), (-719_528, "0001-01-01 BC"), (2_147_483_647, "infinity")],
)
def test_distant_dates(days: int, text: str) -> None:
    assert distant_date(days) == text


def test_distant_instants() -> None:
    assert distant_instant(253_402_300_800_000_001) == "10000-01-01 00:00:00.000001"
    assert distant_instant(-62_135_596_800_000_001) == "0001-12-31 23:59:59.999999 BC"


def test_invalid_json_is_not_sent_as_json() -> None:
    """Rows are sent as one JSON parameter. A value that is no whole JSON value is sent in another way."""
    fits = {"id": ColumnConversion(pa.int64()), "v": ColumnConversion(pa.string(), JSON_FORM)}
    rows = pa.table({"id": [1, 2], "v": ['{"a": 1}', None]})
    assert rows_to_json(rows, fits) == '[{"id":"1","v":{"a": 1}},{"id":"2","v":null}]'
    for hostile in ('1},{"id":"99","v":2', "1}", '"', "null", ""):
        assert rows_to_json(pa.table({"id": [1], "v": [hostile]}), fits) is None
    assert rows_to_json(pa.table({"id": range(201), "v": ["1"] * 201}), fits) is None
