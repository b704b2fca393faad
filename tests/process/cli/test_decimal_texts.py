"""A number has one text everywhere: all its digits, and no exponent."""

from __future__ import annotations

import json
from base64 import b64encode
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from support.debezium_events import ID, make_change_event, make_column, make_event_key

from adapters.apply.conform import cast_column
from adapters.arrow import decimals, masks
from adapters.decoders.json import type_names
from adapters.delta.table_writer import TargetColumn, _column_values
from adapters.delta.types import to_storable
from adapters.postgres.literals import text_column
from adapters.transforms import expressions
from replicator.cli import main
from replicator.domain.plain_values import to_json_value

CONFIG = """\
pipeline: numbers
sources: {s: {format: debezium_json, transport: archive, path: ./in}}
sinks: {lake: {kind: delta, path: ./lake}, raw: {kind: event_log, path: ./lake/log}}
dead_letters: {path: ./dead}
tables:
  - match: public.t
    source: s
    columns: {same: {expression: "concat(small)"}, text: {expression: "small", cast: string}}
    to: [{sink: lake}, {sink: raw, columns: {}}]
http: {address: "127.0.0.1:0"}
"""
TINY = Decimal(1).scaleb(-20)
NUMBERS = (Decimal(0), TINY, -TINY, Decimal("12.5"))
WIDE, SMALL = pa.decimal256(40, 20), pa.decimal128(38, 20)


def format_digits(number: Decimal) -> str:
    return f"{number:.20f}"


def rewrite_as_text(numbers: pa.ChunkedArray) -> pa.Array:
    column = TargetColumn("v", pa.field("v", pa.string()))
    return _column_values(pa.record_batch({"v": numbers.chunk(0)}), column)


@pytest.mark.parametrize("kind", [WIDE, SMALL])
def test_every_cast_to_text_has_all_digits(kind: pa.DataType) -> None:
    numbers = pa.chunked_array([pa.array([*NUMBERS, None], kind)])
    wanted = [*map(format_digits, NUMBERS), None]
    lists = pa.chunked_array([pa.array([list(NUMBERS), None, []], pa.list_(kind)).slice(0, 2)])
    paths = {
        "kept types of Delta": to_storable(pa.table({"v": pa.chunked_array([numbers.chunk(0)]).cast(WIDE)}))["v"],
        "a target's column": cast_column(numbers, pa.string())[0],
        "cast": expressions.cast_values(numbers, pa.string())[0],
        "expressions": masks.to_texts(numbers),
        "rows that a wider column rewrites": rewrite_as_text(numbers),
        "PostgreSQL": text_column(numbers.chunk(0)),
    }
    assert {name: found.to_pylist() for name, found in paths.items()} == dict.fromkeys(paths, wanted)
    assert list(type_names.to_json_values(numbers, kind)) == wanted
    assert cast_column(lists, pa.list_(pa.string()))[0].to_pylist() == [wanted[:-1], None]
    nested = pa.struct([("m", pa.map_(pa.string(), kind))])
    maps = pa.array([{"m": [("a", TINY)]}, None, {"m": None}], nested)
    texts = decimals.cast_digits(maps, pa.struct([("m", pa.map_(pa.string(), pa.string()))]))
    assert texts.to_pylist() == [{"m": [("a", format_digits(TINY))]}, None, {"m": None}]
    assert [to_json_value(number) for number in (numbers[0].as_py(), numbers[1].as_py())] == wanted[:2]


def test_one_number_has_one_text_in_targets_and_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.replace(", columns: {}", ""))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text("".join(f"{json.dumps(make_record(i, n))}\n" for i, n in enumerate(NUMBERS)))
    monkeypatch.chdir(tmp_path)
    run_command("run", "--until-caught-up", "-q")
    wanted = {i: format_digits(n) for i, n in enumerate(NUMBERS)}
    stored = {row["id"]: row for row in DeltaTable("lake/t").to_pyarrow_table().to_pylist()}
    for name in ("wide", "same", "text"):
        assert {i: row[name] for i, row in stored.items()} == wanted, name
    queried = json.loads(run_command("query", "t", "--json", "-q"))["result"]
    assert {row["id"]: row["small"] for row in queried} == {row["id"]: row["wide"] for row in queried} == wanted
    [changed] = json.loads(run_command("history", "public.t", "1", "--json", "-q"))["result"]
    assert changed["after"]["small"] == changed["after"]["wide"] == wanted[1]
    for words in (("--csv",), ()):
        assert run_command("query", "t", "-q", *words).count(wanted[1].lstrip("-")) == 2 * 4, words


def make_record(number: int, value: Decimal) -> dict[str, Any]:
    raw = b64encode(int(value.scaleb(20)).to_bytes(16, "big", signed=True)).decode()
    columns = [ID, *(make_decimal_column(name, digits) for name, digits in (("wide", 40), ("small", 38)))]
    text = make_change_event(columns, after={"id": number, "wide": raw, "small": raw}, at=1_000 + number).decode()
    place = {"topic": "cdc.public.t", "partition": 0, "offset": number, "timestamp": 1_700_000_000_000, "headers": []}
    return {**place, "key": make_event_key(id=number).decode(), "value": text}


def make_decimal_column(name: str, digits: int) -> dict[str, Any]:
    parameters = {"scale": "20", "connect.decimal.precision": str(digits)}
    return make_column(name, "bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters)


def run_command(*words: str) -> str:
    done = CliRunner().invoke(main, list(words), catch_exceptions=False, env={"COLUMNS": "400"})
    assert done.exit_code == 0, done.output
    return done.stdout
