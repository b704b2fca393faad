"""Expressions of the config over Arrow: equal to the model and to DuckDB."""

from __future__ import annotations

import pickle
from datetime import date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from adapters.transforms.expressions import ExpressionRows
from replicator.domain.transform.expressions import resolve_expression
from replicator.domain.transform.typed_expressions import InvalidExpression
from replicator.settings.expressions import InvalidExpressionText, parse_expression
from replicator.testing.model_transforms import UnrepresentableValue, evaluate

TYPES = {
    "i": pa.int64(),
    "j": pa.int32(),
    "p": pa.decimal128(10, 2),
    "q": pa.decimal128(38, 4),
    "f": pa.float64(),
    "s": pa.string(),
    "r": pa.string(),
    "b": pa.bool_(),
    "d": pa.date32(),
    "l": pa.timestamp("us"),
}
LEAST, MOST = -(2**63), 2**63 - 1
WHOLE = st.sampled_from([0, 1, -1, 2, 7, LEAST, MOST, MOST // 2]) | st.integers(LEAST, MOST)
EIGHTHS = st.integers(-(2**20), 2**20).map(lambda n: n / 8) | st.sampled_from([0.0, 1e300, -1e300])
TEXT = st.text("aBé x'1日", max_size=6) | st.sampled_from(["1", "12.50", "2024-02-29", "true", " a "])
VALUES = {
    "i": WHOLE,
    "j": st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1]),
    "p": st.decimals(-99999999, 99999999, places=2, allow_nan=False),
    "q": st.sampled_from([Decimal("0.0000"), Decimal("1.5000"), Decimal("9" * 34 + ".5000")]),
    "f": EIGHTHS,
    "s": TEXT,
    "r": TEXT,
    "b": st.booleans(),
    "d": st.dates(date(1800, 1, 1), date(2200, 1, 1)),
    "l": st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1)),
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), min_size=1, max_size=6)
COUNT = st.integers(0, 4)


def make_template(template: str, *parts: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda given: template.format(*given))


def among(*texts: str) -> st.SearchStrategy[str]:
    return st.sampled_from(texts)


def bigger(kinds: dict[str, st.SearchStrategy[str]]) -> dict[str, st.SearchStrategy[str]]:
    """Expressions of each kind, of such as there are."""
    whole, exact, real, text, truth, day, moment = (
        kinds[k] for k in ("whole", "exact", "real", "text", "truth", "day", "l")
    )
    number, parts = st.one_of(whole, exact, real), among("year", "quarter", "month", "day", "doy")
    same = [st.tuples(kind, kind) for kind in (whole, exact, real, text, day, moment)]
    units = among("year", "quarter", "month", "week", "day")

    def choice(kind: st.SearchStrategy[str]) -> list[st.SearchStrategy[str]]:
        return [
            make_template("case when {0} then {1} else {2} end", truth, kind, kind),
            make_template("case when {0} then {1} when {2} then {3} end", truth, kind, truth, kind),
            make_template("coalesce({0}, {1})", kind, kind),
            make_template("nullif({0}, {1})", kind, kind),
        ]

    return {
        "whole": st.one_of(
            make_template("({0} {1} {2})", whole, among("+", "-", "*", "%"), whole),
            make_template("(- {0})", whole),
            make_template("abs({0})", whole),
            make_template("length({0})", text),
            make_template("extract({0} from {1})", parts, day),
            make_template("extract({0} from {1})", among("hour", "minute", "second", "year"), moment),
            make_template("cast({0} as bigint)", st.one_of(whole, exact, real)),
            *choice(whole),
        ),
        "exact": st.one_of(
            make_template("({0} {1} {2})", exact, among("+", "-", "*"), exact),
            make_template("({0} {1} {2})", exact, among("+", "-"), whole),
            make_template("{0}({1})", among("abs", "floor", "ceil", "round"), exact),
            make_template("round({0}, {1})", exact, COUNT),
            make_template("cast({0} as decimal(12,2))", st.one_of(whole, exact)),
            *choice(exact),
        ),
        "real": st.one_of(
            make_template("({0} {1} {2})", real, among("+", "-", "*"), real),
            make_template("({0} / {1})", number, number),
            make_template("{0}({1})", among("abs", "floor", "ceil", "round"), real),
            *choice(real),
        ),
        "text": st.one_of(
            make_template("concat({0}, {1}, {2})", text, among("i", "p", "b", "d", "s"), text),
            make_template("({0} || {1})", text, text),
            make_template("{0}({1})", among("lower", "upper", "trim", "ltrim", "rtrim"), text),
            make_template("substring({0}, {1}, {2})", text, st.integers(1, 4), COUNT),
            make_template("substring({0}, {1})", text, st.integers(1, 4)),
            make_template("{0}({1}, {2})", among("left", "right"), text, COUNT),
            make_template("replace({0}, 'a', 'xy')", text),
            make_template("cast({0} as string)", st.one_of(whole, truth, day)),
            *choice(text),
        ),
        "truth": st.one_of(
            make_template("({0} {1} {2})", truth, among("and", "or"), truth),
            make_template("(not {0})", truth),
            make_template("({0} is null)", st.one_of(whole, exact, real, text, truth, day, moment)),
            st.one_of(*same).flatmap(lambda both: among("=", "<>", "<", ">=").map(lambda op: f"({both[0]} {op} {both[1]})")),
            make_template("({0} between {1} and {2})", whole, exact, whole),
            make_template("({0} in ({1}, {2}))", text, text, text),
        ),
        "day": st.one_of(make_template("date_trunc('{0}', {1})", units, day), *choice(day)),
        "l": st.one_of(
            make_template("date_trunc('{0}', {1})", units | among("hour", "minute", "second"), moment), *choice(moment)
        ),
    }


SMALL: dict[str, st.SearchStrategy[str]] = {
    "whole": among("i", "j", "0", "1", "7", "-3"),
    "exact": among("p", "q", "1.5", "0.25"),
    "real": among("f", "f"),
    "text": among("s", "r", "' a'", "''"),
    "truth": among("b", "true", "b"),
    "day": among("d", "date '2024-02-29'"),
    "l": among("l", "timestamp '2024-02-29 12:34:56'"),
}
LARGER = bigger({kind: small | more for (kind, small), more in zip(SMALL.items(), bigger(SMALL).values(), strict=True)})
EXPRESSIONS = st.one_of(*LARGER.values())
LOST = "no value"


def evaluate_rows(text: str, rows: list[dict[str, object]]) -> list[object]:
    """Per row the value, or that there is none."""
    node = resolve_expression(parse_expression(text), TYPES)
    node = pickle.loads(pickle.dumps(node))
    columns = {name: pa.chunked_array([pa.array([row[name] for row in rows], kind)]) for name, kind in TYPES.items()}
    values, failed = ExpressionRows(columns, len(rows)).evaluate(node)
    assert values.type == node.type and len(values) == len(rows)
    why = [None] * len(rows) if failed is None else failed.to_pylist()
    assert all(value is None for value, reason in zip(values.to_pylist(), why, strict=True) if reason)
    return [LOST if reason else value for value, reason in zip(values.to_pylist(), why, strict=True)]


def evaluate_in_model(text: str, row: dict[str, object]) -> object:
    """The model knows no types: its decimals have the scale of their value, and the engine's that of their expression."""
    try:
        value = evaluate(parse_expression(text), row)
    except UnrepresentableValue:
        return LOST
    if isinstance(value, Decimal):
        scale = resolve_expression(parse_expression(text), TYPES).type.scale
        return value if value.adjusted() + 1 + scale <= 38 else LOST
    return value


def sensible(text: str) -> None:
    """Some of what can be written needs too many digits."""
    try:
        resolve_expression(parse_expression(text), TYPES)
    except InvalidExpression as why:
        assume("digits" not in str(why) and "compares constants" not in str(why))
        raise


@given(EXPRESSIONS, ROWS)
@example("floor(f)", [dict.fromkeys(TYPES) | {"f": 1e300}])
@example(
    "round(q, 0) + case when b then p else q end",
    [dict.fromkeys(TYPES) | {"p": Decimal(0), "q": Decimal("9999999999999999999999999999999999.5"), "b": True}],
)
def test_random_expressions_equal_the_model(text, rows):
    sensible(text)
    assert evaluate_rows(text, rows) == [evaluate_in_model(text, row) for row in rows]


def without_clock(value: object) -> object:
    """DuckDB truncates a day to a moment, which is another text."""
    return value.replace(" 00:00:00", "") if isinstance(value, str) else value


def fraction(value: Decimal) -> int:
    """The digits after the point of a finite number."""
    return -int(value.as_tuple().exponent)


@pytest.mark.slow
@given(EXPRESSIONS, ROWS)
@example("case when b then floor(q) else p end", [{**dict.fromkeys(TYPES), "p": Decimal("0.01")}])
def test_random_expressions_equal_duckdb(text, rows):
    """Which rejects what does not fit, too, but for a division by zero, which is NULL there, and for casts that round.
    Where two decimals together need more than 38 digits, it rounds."""
    sensible(text)
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()}
    with duckdb.connect() as ask:
        ask.register("given", pa.table({**columns, "place": range(len(rows))}))
        for place, value in enumerate(evaluate_rows(text, rows)):
            try:
                ((told,),) = ask.sql(f"SELECT {text} FROM given WHERE place = {place}").fetchall()
            except duckdb.Error:
                continue
            if value != LOST and not (isinstance(value, Decimal) and fraction(told) < fraction(value)):
                told = told.date() if type(value) is date and isinstance(told, datetime) else told
                assert without_clock(told) == without_clock(value), (place, told, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("concat(s, ' ', r)", "it's b"),
        ("concat(s, null_text, r)", "it'sb"),
        ("s || null_text", None),
        ("i + 1", LOST),
        ("i % -1", 0),
        ("-i - 2", LOST),
        ("abs(-i - 1)", LOST),
        ("j / 0", LOST),
        ("j % 0", LOST),
        ("case when j = 0 then 0 else i / j end", 0.0),
        ("j <> 0 and i / j > 1", False),
        ("i / j > 1 and j <> 0", LOST),
        ("j = 0 or i / j > 1", True),
        ("coalesce(s, cast(i / j as string))", "it's"),
        ("p * p", Decimal("2.2500")),
        ("p + 1", Decimal("2.50")),
        ("q * p * 1000", LOST),
        ("round(p)", Decimal(2)),
        ("round(-p)", Decimal(-2)),
        ("floor(-p)", Decimal(-2)),
        ("f * f", LOST),
        ("round(f, 10)", 1e300),
        ("round(f - f - 4503599627370495.5, 30)", -4503599627370495.5),
        ("cast(p as int64)", LOST),
        ("cast(cast(round(p) as int64) as int8)", 2),
        ("cast(i as int32)", LOST),
        ("cast(s as int64)", LOST),
        ("cast('12' as int64) + 1", 13),
        ("cast(at as date)", LOST),
        ("cast(date_trunc('day', at) as date)", date(2024, 2, 29)),
        ("date_trunc('month', d)", date(2024, 2, 1)),
        ("extract(hour from at)", 23),
        ("year(d) * 100 + month(d)", 202402),
        ("d >= '2024-02-01' and d < date '2024-03-01'", True),
        ("nullif(s, 'it''s')", None),
        ("case j when 0 then 'none' when 1 then 'one' end", "none"),
        ("upper(left(s, 1))", "I"),
        ("substring('日本語', 2, 1)", "本"),
        ("i in (1, 9223372036854775807)", True),
        ("items is null", False),
        ("coalesce(items, items)", [1]),
        ("u + 0", Decimal(2**64 - 1)),
    ],
)
def test_results_of_expressions(text, expected):
    moment = datetime.fromisoformat("2024-02-29T23:30:00+00:00")
    given_: dict[str, tuple[object, pa.DataType]] = {
        "i": (MOST, pa.int64()),
        "j": (0, pa.int16()),
        "p": (Decimal("1.50"), pa.decimal128(10, 2)),
        "q": (Decimal(10) ** 33, pa.decimal128(38, 4)),
        "f": (1e300, pa.float64()),
        "s": ("it's", pa.string()),
        "r": ("b", pa.large_string()),
        "null_text": (None, pa.string()),
        "d": (date(2024, 2, 29), pa.date32()),
        "at": (moment, pa.timestamp("ms", "UTC")),
        "items": ([1], pa.list_(pa.int64())),
        "u": (2**64 - 1, pa.uint64()),
    }
    node = resolve_expression(parse_expression(text), {name: kind for name, (_, kind) in given_.items()})
    columns = {name: pa.chunked_array([pa.array([value, value], kind)]) for name, (value, kind) in given_.items()}
    values, failed = ExpressionRows(columns, 2).evaluate(node)
    found = [LOST] * 2 if failed is not None and failed.null_count == 0 else values.to_pylist()
    assert found == [expected] * 2
    for empty in (
        {name: column.slice(0, 0) for name, column in columns.items()},
        {n: pa.chunked_array([], c.type) for n, c in columns.items()},
    ):
        values, failed = ExpressionRows(empty, 0).evaluate(node)
        assert (len(values), values.type, failed) == (0, node.type, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("i + s", "passes a value of type string to '+', which needs a number"),
        ("lower(i)", "passes a value of type int64 to 'lower', which needs text"),
        ("f % 2", "but it needs whole numbers"),
        ("concat(f, s)", "passes a value of type double to 'concat': cast it to string first"),
        ("case when i then 1 end", "uses column 'i' (int64) as true or false"),
        ("case when b then i else s end", "combines several kinds of values: int64 and string"),
        ("coalesce(null, null)", "has no type"),
        ("lower(null)", "passes NULL to 'lower'"),
        ("substring(s, i)", "needs a whole number of 1 or more"),
        ("substring(s, 0)", "needs a whole number of 1 or more"),
        ("round(p, -1)", "needs a whole number of 0 or more"),
        ("extract(hour from d)", "needs one of these as an argument of 'extract': year, quarter, month, day, day_of_year"),
        ("extract(century from d)", "needs one of these"),
        ("date_trunc('decade', d)", "needs one of these"),
        ("replace(s, '', 'x')", "needs two texts as arguments of 'replace', the first not empty"),
        ("cast(b as date)", "casts column 'b' (bool) to date32[day], which is impossible"),
        ("date '2024-02-30'", "contains a text that is not a date"),
        ("lower(s) = 1", "compares a value of type string with a value that is not text"),
        ("lower(s) = i", "compares values of different kinds: a value of type string and 'i' (int64)"),
        ("q * q * q", "too many digits together"),
        ("coalesce(q, cast(i as decimal(38,0)))", "that need 42 digits"),
    ],
)
def test_invalid_types_of_expressions_are_refused(text, said):
    with pytest.raises(InvalidExpression) as refused:
        resolve_expression(parse_expression(text), TYPES)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sum(i)", "has an aggregate"),
        ("row_number() over (order by i)", "has an aggregate"),
        ("(select max(i) from t)", "has a query in it, but an expression reads only one row"),
        ("i in (select 1)", "without a list of constants"),
        ("secret_function(s)", "has an unknown function 'secret_function'"),
        ("random()", "has an unknown function"),
        ("current_date", "has an unknown function"),
        ("try_cast(s as int64)", "has"),
        ("cast(s as json)", "casts to an unknown type"),
        ("cast(s as varchar(3))", "casts to an unknown type"),
        ("trim(both 'x' from s)", "has a function with unknown arguments"),
        ("t.i + 1", "write a name with a dot in double quotes"),
        ("s like 'a%'", "has something else where"),
        ("i +", "cannot be read"),
        ("i; drop table t", "cannot be read"),
        (" + ".join("i" * 203), "is nested more than 200 levels deep"),
        ("abs(" * 300 + "i" + ")" * 300, "cannot be read"),
        ("nullif(" * 20 + "i" + ", 1)" * 20, "is too long"),
    ],
)
def test_invalid_expression_text_is_refused(text, said):
    with pytest.raises(InvalidExpressionText) as refused:
        parse_expression(text)
    assert said in str(refused.value)


def test_deepest_expression_is_evaluated():
    text = " + ".join(["i"] * 190)
    assert evaluate_rows(text, [dict.fromkeys(TYPES) | {"i": 2}]) == [380]


def test_one_row_of_many_fails_alone():
    rows = [dict.fromkeys(TYPES) | {"i": MOST if place == 777 else place, "j": place % 2} for place in range(1000)]
    found = evaluate_rows("i + 1", rows)
    assert found.index(LOST) == 777 and found.count(LOST) == 1
    assert evaluate_rows("i % j", rows).count(LOST) == 500
