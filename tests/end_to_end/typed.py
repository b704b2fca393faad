"""Tables with a column of every type: edge values, then random values, and their comparison between systems."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types import TypeInfo
from psycopg.types.hstore import register_hstore
from psycopg.types.string import TextLoader

from .compare import LOADERS, index_by_key, list_differences
from .daemon import Daemon
from .stack import World

Read = Callable[[Any], Any]
Make = Callable[[Random], str]
Table = Mapping[Any, Mapping[str, Any]]
"""Key -> comparable values of a row, and `touched`, which every update changes."""
ROWS = int(os.environ.get("REPLICATOR_EXAMPLES", "25")) * 4
"""Rows in the snapshot, and again in the log."""
PATIENCE = 240.0
"""Seconds. Each step is slow on Spark."""
SEED = int(os.environ.get("REPLICATOR_SEED", "7"))
NULLS = 0.1
"""The share of NULL values."""
AS_TEXT = ("json", "jsonb", "cidr", "macaddr", "int4range", "numrange", "tstzrange", "tsvector", "point", "bit")


@dataclass(frozen=True)
class Typed:
    """A column. `declared`: its type in the source. `edges`, `make`: values as text for the source. `read`: converts a
    value of the source, the lake or the target, in any form of docs/reference/types.md, to a comparable value."""

    name: str
    declared: str
    edges: Sequence[str]
    make: Make
    read: Read

    def values(self, random: Random) -> Iterator[str | None]:
        """An endless stream: the edge values, then random values, some of them NULL."""
        yield from self.edges
        while True:
            yield None if random.random() < NULLS else self.make(random)


def make_rows(columns: Sequence[Typed], count: int, seed: int) -> list[list[str | None]]:
    """Rows with one value for each column."""
    random = Random(seed)
    streams = [column.values(random) for column in columns]
    return [[next(stream) for stream in streams] for _ in range(count)]


def read_table_values(columns: Sequence[Typed], rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows by `id`, with comparable values. Columns that a row lacks are left out."""
    own = [{name: row[name] for name in ("id", "touched")} for row in rows]
    said = [{c.name: _read_value(c, row[c.name]) for c in columns if c.name in row} for row in rows]
    return index_by_key([{**row, **values} for row, values in zip(own, said, strict=True)], "id")


def _read_value(column: Typed, value: Any) -> Any:
    """A value in an unknown form becomes a text that equals no other value."""
    try:
        return None if value is None else column.read(value)
    except (AssertionError, ValueError, TypeError, ArithmeticError):
        return f"not read: {value!r}"


def await_equal(daemon: Daemon, source: Table, held: Callable[[], Mapping[str, Table]], what: str) -> None:
    """Waits until every sink has the rows of the source, then compares their values. Shows the first difference of each
    column."""
    touched = {key: row["touched"] for key, row in source.items()}

    def is_equal() -> bool:
        return all({key: row["touched"] for key, row in rows.items()} == touched for rows in held().values())

    try:
        daemon.await_condition(is_equal, f"{what} are stored", PATIENCE)
    except AssertionError as late:
        lanes = [f"{name}: {lane['counts']} {lane['error']}" for name, lane in daemon.lanes().items()]
        raise AssertionError("\n".join([str(late), daemon.tail(), *lanes])) from None
    lines: list[str] = []
    for sink, rows in held().items():
        for name in next(iter(source.values())):
            one = {key: {name: row.get(name)} for key, row in source.items()}
            lines += [f"{sink}: {line}" for line in list_differences(one, rows)[:1]]
    assert not lines, "\n".join(lines)


def await_rejected(world: World, daemon: Daemon, held: Callable[[], Mapping[str, Table]], columns: Sequence[str]) -> None:
    """Waits until every sink has the last row, which is valid. The sinks must have no other row. Each earlier row must
    be a dead letter that names its invalid column."""
    last = len(columns)
    daemon.await_condition(lambda: all((last,) in rows for rows in held().values()), "the valid row is stored", PATIENCE)
    assert [list(rows) for rows in held().values()] == [[(last,)]] * len(held())
    letters = [(letter["code"], letter["sentence"].split("'")[1]) for letter in world.dead_letters()]
    assert sorted(letters) == sorted(("OUT_OF_RANGE", name) for name in columns)


def postgres_rows(dsn: str, table: str) -> list[dict[str, Any]]:
    """The rows of a table as the driver reads them. Types that it would convert to Python objects are text."""
    with closing(psycopg.connect(dsn, autocommit=True, row_factory=dict_row)) as connection:
        for name, loader in LOADERS.items():
            connection.adapters.register_loader(name, loader)
        for name in AS_TEXT:
            if (kind := TypeInfo.fetch(connection, name)) is not None:
                connection.adapters.register_loader(kind.oid, TextLoader)
        if (pairs := TypeInfo.fetch(connection, "hstore")) is not None:
            register_hstore(pairs, connection)
        try:
            return connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier("public", table))).fetchall()
        except psycopg.errors.UndefinedTable:
            return []


# -- comparable values -------------------------------------------------------------------------------------------------


def same(value: Any) -> Any:
    """The value itself."""
    return value


def number(value: Any) -> Decimal:
    """A number with all its digits, from a number or text."""
    assert not isinstance(value, float | bool)
    return Decimal(value)


def floating(value: float) -> Any:
    """The bits of a double. All NaN are equal."""
    assert isinstance(value, float)
    return "NaN" if math.isnan(value) else struct.pack(">d", value)


def single(value: float) -> Any:
    """The bits of a 32-bit float. All NaN are equal."""
    assert isinstance(value, float)
    return "NaN" if math.isnan(value) else struct.pack(">f", value)


def document(value: Any) -> Any:
    """JSON with all digits of its numbers, from text or a parsed object."""
    return json.loads(value, parse_float=Decimal) if isinstance(value, str) else value


def octets(value: Any) -> bytes:
    """Bytes."""
    return bytes(value)


def clock(value: Any) -> time:
    """A time of day. A lake returns text."""
    return time.fromisoformat(value) if isinstance(value, str) else value


def make_timestamp(value: Any) -> datetime:
    """A timestamp."""
    assert isinstance(value, datetime)
    return value


def day(value: Any) -> date:
    """A date."""
    assert isinstance(value, date)
    return value


def bits(length: int) -> Read:
    """A bit string as a number. Bytes start with the lowest."""

    def read(value: Any) -> int:
        if isinstance(value, str):
            assert len(value) == length
            return int(value, 2)
        return int.from_bytes(bytes(value), "little")

    return read


def several(read: Read) -> Read:
    """An array of such values."""
    return lambda values: [None if value is None else read(value) for value in values]


ISO_SPAN = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d+)?(?:E-?\d+)?)S)?)?\Z"
)
SHOWN_SPAN = re.compile(
    r"(?:(-?\d+) years? ?)?(?:(-?\d+) mons? ?)?(?:(-?\d+) days? ?)?(?:(-?)(\d+):(\d+):(\d+(?:\.\d+)?))?\Z"
)


def span(value: str) -> tuple[int, int, Decimal]:
    """An interval as months, days and seconds, from ISO 8601 or PostgreSQL's text. The parts are not converted into
    each other. Seconds are rounded to microseconds: the connector sends 1.659804 s as 1.659803999."""
    months, days, seconds = _parse_span(value)
    return months, days, seconds.quantize(Decimal("0.000001"))


def _parse_span(value: str) -> tuple[int, int, Decimal]:
    if found := ISO_SPAN.match(value):
        years, months, days, hours, minutes, seconds = (Decimal(part or 0) for part in found.groups())
        return int(12 * years + months), int(days), 3600 * hours + 60 * minutes + seconds
    shown = SHOWN_SPAN.match(value.replace("+", ""))
    assert shown is not None, value
    years, months, days = (Decimal(shown[i] or 0) for i in (1, 2, 3))
    hours, minutes, seconds = (Decimal(shown[i] or 0) for i in (5, 6, 7))
    sign = -1 if shown[4] else 1
    return int(12 * years + months), int(days), sign * (3600 * hours + 60 * minutes + seconds)


# -- values at random --------------------------------------------------------------------------------------------------


def whole(low: int, high: int) -> Make:
    """Whole numbers of all sizes between the two limits."""
    return lambda random: str(random.choice((random.randint(low, high), random.randint(max(low, -100), min(high, 100)))))


def digits(precision: int, scale: int) -> Make:
    """Decimals of up to `precision` digits."""

    def make(random: Random) -> str:
        unscaled = random.randrange(10 ** random.randint(1, precision))
        number = Decimal(unscaled).scaleb(-scale, None) if precision < 29 else scale_number(unscaled, scale)
        return f"{random.choice('-+')}{number}"

    return make


def scale_number(unscaled: int, scale: int) -> str:
    text = str(unscaled).rjust(scale + 1, "0")
    return f"{text[:-scale]}.{text[-scale:]}" if scale else text


def any_double(random: Random) -> str:
    """Any pattern of 64 bits."""
    return repr(struct.unpack(">d", random.randbytes(8))[0]).replace("inf", "Infinity").replace("nan", "NaN")


def any_single(random: Random) -> str:
    """Any pattern of 32 bits."""
    return repr(struct.unpack(">f", random.randbytes(4))[0]).replace("inf", "Infinity").replace("nan", "NaN")


LETTERS = "aZ09 \t\n\r\x01\x7f\"'\\,{}[]();:%é漢🎉\u2028NULL"


def any_text(random: Random) -> str:
    """Text with characters that break parsers."""
    return "".join(random.choice(LETTERS) for _ in range(random.randint(0, 12)))


def stamp(first: int, *, places: int = 6, years: tuple[int, int] = (1583, 9999)) -> Make:
    """A timestamp with `places` decimals, cut to its text from position `first`."""

    def make(random: Random) -> str:
        at = datetime(
            random.randint(*years), random.randint(1, 12), random.randint(1, 28), random.randint(0, 23),
            random.randint(0, 59), random.randint(0, 59),
        )  # fmt: skip
        fraction = f".{random.randrange(10**places):0{places}}" if places else ""
        return f"{at:%Y-%m-%d %H:%M:%S}".rjust(19, "0")[first:] + fraction

    return make


def array(make: Make) -> Make:
    """An array of such values, some of them NULL, in PostgreSQL's notation."""

    def element(random: Random) -> str:
        text = make(random).replace("\\", "\\\\").replace('"', '\\"')
        return "NULL" if random.random() < NULLS else f'"{text}"'

    return lambda random: "{" + ",".join(element(random) for _ in range(random.randint(0, 4))) + "}"


def any_document(random: Random, depth: int = 3) -> Any:
    """A random JSON document."""
    kind = random.randrange(7 if depth else 5)
    if kind == 5:
        return [any_document(random, depth - 1) for _ in range(random.randint(0, 3))]
    if kind == 6:
        return {any_text(random).replace("\x00", ""): any_document(random, depth - 1) for _ in range(random.randint(0, 3))}
    return (None, True, random.randint(-(10**20), 10**20), round(random.uniform(-1e6, 1e6), 6), any_text(random))[kind]


def any_json(random: Random) -> str:
    """JSON text."""
    return json.dumps(any_document(random))
