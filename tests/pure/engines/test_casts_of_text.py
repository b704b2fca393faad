"""Text as numbers: exactly the written number, or none."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.apply.conform import cast_rows
from adapters.transforms.expressions import cast_values

DECIMALS = (pa.decimal128(38, 10), pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal256(60, 5), pa.decimal256(76, 0))
DIGITS = st.text("0123456789", min_size=1, max_size=90)
WRITTEN = st.builds("{}{}{}".format, st.sampled_from(["", "-"]), DIGITS, st.builds(".{}".format, DIGITS) | st.just(""))


def convert_exactly(text: str, kind: pa.DataType) -> Decimal | None:
    """The number, if the type holds it."""
    with localcontext(prec=400):
        number = Decimal(text)
        unscaled = number.scaleb(kind.scale)
        fits = unscaled == unscaled.to_integral_value() and abs(unscaled) < 10**kind.precision
    return number if fits else None


@pytest.mark.parametrize("kind", DECIMALS, ids=str)
@given(texts=st.lists(WRITTEN, min_size=1, max_size=5))
def test_decimal_text_is_cast_exactly_or_not_at_all(kind: pa.DataType, texts: list[str]) -> None:
    expected = [convert_exactly(text, kind) for text in texts]
    done, lost = cast_values(pa.chunked_array([texts], pa.string()), kind)
    assert done.to_pylist() == expected
    assert lost.to_pylist() == [number is None for number in expected]


@pytest.mark.parametrize("kind", DECIMALS, ids=str)
@given(texts=st.lists(WRITTEN, min_size=1, max_size=5))
def test_decimal_text_is_stored_exactly_or_rejected(kind: pa.DataType, texts: list[str]) -> None:
    """For example a number of any scale, for a target column with a fixed scale."""
    expected = [convert_exactly(text, kind) for text in texts]
    good, bad = cast_rows(pa.table({"v": texts}), pa.schema([("v", kind)]))
    assert good["v"].to_pylist() == [number for number in expected if number is not None]
    assert bad["v"].to_pylist() == [text for text, number in zip(texts, expected, strict=True) if number is None]


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("1e400", pa.float64(), None),
        ("-1e400", pa.float64(), None),
        ("1e39", pa.float32(), None),
        ("Infinity", pa.float64(), math.inf),
        ("-inf", pa.float32(), -math.inf),
        ("1.5", pa.float32(), 1.5),
        ("0x10", pa.int64(), None),
        ("9223372036854775808", pa.int64(), None),
        ("-7", pa.int64(), -7),
        ("NaN", pa.decimal128(10, 2), None),
        ("1e2", pa.decimal128(10, 2), Decimal(100)),
    ],
)
def test_number_text_is_cast_exactly_or_not_at_all(text: str, kind: pa.DataType, expected: object) -> None:
    done, lost = cast_values(pa.chunked_array([[text]], pa.string()), kind)
    assert (done.to_pylist(), lost.to_pylist()) == ([expected], [expected is None])
