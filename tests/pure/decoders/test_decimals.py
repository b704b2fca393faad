"""Decimals as text: the exact number, or null."""

from __future__ import annotations

import random
from decimal import Context, Decimal

import pyarrow as pa
import pytest

from adapters.arrow.decimals import from_text
from adapters.arrow.record_errors import ValueMisfit

TYPES = [
    pa.decimal128(38, 10),
    pa.decimal128(38, 2),
    pa.decimal128(20, 4),
    pa.decimal128(10, 2),
    pa.decimal128(38, 0),
    pa.decimal128(38, 38),
    pa.decimal128(5, 5),
    pa.decimal256(60, 10),
]

EXACT = Context(prec=500)


def read(text: str, kind: pa.DataType) -> Decimal | None:
    """None where it is refused."""
    try:
        return from_text(pa.array([text]), kind)[0].as_py()
    except ValueMisfit:
        return None


def is_representable(text: str, kind: pa.DataType) -> bool:
    _, digits, exponent = EXACT.normalize(Decimal(text)).as_tuple()
    return Decimal(text) == 0 or (-exponent <= kind.scale and len(digits) + exponent <= kind.precision - kind.scale)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_number_is_exact_or_refused(kind):
    some = random.Random(kind.precision * 100 + kind.scale)
    for _ in range(3000):
        whole, places = some.randint(0, 45), some.randint(0, 45)
        text = some.choice(("", "-", "+")) + str(some.randint(0, 10**whole))
        text += "." + "".join(some.choice("0000000123") for _ in range(places)) if places else ""
        text += f"e{some.randint(-50, 50)}" if some.random() < 0.2 else ""
        assert read(text, kind) == (Decimal(text) if is_representable(text, kind) else None), text


@pytest.mark.parametrize("text", ["1E-1000000000", "1e99999", "1e-99999", "-1E+1000000000", "1e-41", "70000000000000000000"])
def test_exponents_and_digits_beyond_the_type_are_refused(text):
    assert read(text, pa.decimal128(10, 2)) is None


@pytest.mark.parametrize("text", ["", "-", ".", "NaN", "Infinity", "1,5", "0x10", " 1", "1 ", "1_0", "é", "٣"])
def test_text_that_is_no_number_is_refused(text):
    assert [read(text, kind) for kind in TYPES] == [None] * len(TYPES)


SPELLINGS = [("00000000000012.50", "12.5"), ("1.5000", "1.5"), (".5", "0.5"), ("5.", "5"), ("2e2", "200")]


@pytest.mark.parametrize(("text", "value"), SPELLINGS)
def test_other_notations_of_representable_numbers(text, value):
    assert read(text, pa.decimal128(10, 2)) == Decimal(value)


def test_nulls_among_numbers():
    assert from_text(pa.array(["1", None, "2.25"]), pa.decimal128(10, 2)).to_pylist() == [Decimal(1), None, Decimal("2.25")]
    assert from_text(pa.array([None], pa.string()), pa.decimal128(10, 2)).to_pylist() == [None]
