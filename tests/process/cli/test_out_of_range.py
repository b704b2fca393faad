"""Dates and times that no target can hold: the row is rejected unless `out_of_range` says otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from support.debezium_events import ID, TOPIC, make_change_event, make_column, make_event_key, make_payload, make_raw_records

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.cli import main
from replicator.domain.errors import ExitCode
from replicator.domain.out_of_range import OutOfRange
from replicator.domain.transform.columns import Mask

TIME = "io.debezium.time."
COLUMNS = [
    ID, make_column("day", "int32", f"{TIME}Date"), make_column("at", "int64", f"{TIME}MicroTimestamp"),
    make_column("fine", "int64", f"{TIME}NanoTimestamp"), make_column("zoned", "string", f"{TIME}ZonedTimestamp"),
    make_column("time", "int64", f"{TIME}MicroTime"), make_column("price", "int32"),
]  # fmt: skip
LATE = {
    "day": 2**31 - 1, "at": 9223372036825200000, "fine": 2**63 - 1, "zoned": "infinity", "time": 86_400_000_000,
}  # fmt: skip
EARLY = {
    "day": -(2**31), "at": -9223372036832400000, "fine": -(2**63), "zoned": "-0044-03-15T00:00:00Z", "time": -1,
}  # fmt: skip
DECLARED = {"id": "int64", "day": "date32", "at": "timestamp[us]", "zoned": "timestamptz", "time": "time64[us]"}
CLAMPED = {
    "day": ("0001-01-01", "9999-12-31"),
    "at": ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
    "zoned": ("0001-01-01 00:00:00+00:00", "9999-12-31 23:59:59.999999+00:00"),
    "time": ("00:00:00", "23:59:59.999999"),
}
CONFIG = """\
pipeline: late
sources: {s: {format: debezium_json, transport: archive, path: ./in}}
sinks: {lake: {kind: delta, path: ./lake}}
dead_letters: {path: ./dead}
tables:
  - match: public.t
    source: s
    SAID
    to: [{sink: lake}]
http: {address: "127.0.0.1:0"}
"""


def decode_changes(
    values: list[dict[str, Any]], rules: OutOfRange, *, schema: bool = True, **more: Any
) -> list[dict[str, Any]]:
    options = {"out_of_range": {"public.t": rules}, **({} if schema else {"schema": {"public.t": DECLARED}}), **more}
    decoder = DebeziumJsonDecoder(options)
    rows = [{"id": 1, **value} for value in values]
    texts = [
        make_change_event(COLUMNS, after=row) if schema else json.dumps(make_payload(after=row)).encode() for row in rows
    ]
    frame = make_raw_records(texts, None if schema else [b'{"id":1}'] * len(texts))
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    live = decoder.decode(frame, spec).to_pylist()
    stored = decoder.decode(decoder.mask_records(frame), spec).to_pylist()
    assert [row["_error"] for row in live] == [row["_error"] for row in stored], "what is stored is read as it was"
    return live


@pytest.mark.parametrize("schema", [True, False])
def test_null_and_clamp_keep_the_row(schema: bool) -> None:
    early, late = ({n: v for n, v in value.items() if schema or n in DECLARED} for value in (EARLY, LATE))
    for found in decode_changes([early, late, {}], OutOfRange("null"), schema=schema):
        assert found["_error"] is None and found["id"] == 1 and not any(found[name] for name in early)
    lows, highs = decode_changes([early, late], OutOfRange("clamp"), schema=schema)
    for name, (low, high) in CLAMPED.items():
        assert (str(lows[name]), str(highs[name])) == (low, high)


def test_other_unconvertible_values_are_still_rejected() -> None:
    bad = [{"price": 2**31}, {"zoned": "2024-01-01T00:00:00.0000001Z"}, {"zoned": "x"}]
    for found in decode_changes(bad, OutOfRange("clamp")):
        assert found["_error"].startswith("OUT_OF_RANGE")


def test_rule_for_one_column_does_not_apply_to_others() -> None:
    one, other = decode_changes([{"day": LATE["day"]}, {"at": LATE["at"]}], OutOfRange({"day": "null"}))
    assert one["_error"] is None and "out_of_range" in other["_error"]


def test_value_that_was_not_sent_stays_unchanged() -> None:
    decoder = DebeziumJsonDecoder({"schema": {"public.t": DECLARED}, "out_of_range": {"public.t": OutOfRange("null")}})
    texts = [json.dumps(make_payload(op="u", after={"id": 1, "day": LATE["day"]})).encode()]
    frame = make_raw_records(texts, [b'{"id":1}'])
    [found] = decoder.decode(frame, decoder.learn(frame, "public.t", "x")).to_pylist()
    assert found["_error"] is None and set(found["_unsent"]) == {"at", "zoned", "time"}


@pytest.mark.parametrize("schema", [True, False])
def test_masked_column_without_value_rejects_nothing(schema: bool) -> None:
    private = {"private": {"public.t": {"at": Mask("nothing")}}}
    [found] = decode_changes([{"at": LATE["at"]}], OutOfRange(masks={"at": "nothing"}), schema=schema, **private)
    assert found["_error"] is None and found["at"] is None


@pytest.mark.parametrize(("said", "kept"), [
    ("columns: {at: {rename: then}}", False),
    ("columns: {at: drop}", True),
    ("except_column_list: [at]", True),
    ("column_list: [id, day]", True),
    ("column_list: [id, at]", False),
    ("columns: {at: {mask: nothing}}", True),
    ('out_of_range: "null"', True),
    ("out_of_range: {day: clamp}", False),
    ("out_of_range: {at: clamp}", True),
    ("to: [{sink: lake, where: at is null, columns: {at: drop}}]", False),
    ("to: [{sink: lake, columns: {at: drop}}, {sink: lake, into: u}]", False),
    ("columns: {at: {cast: string}}", True),
    ("columns: {at: {cast: string, rename: then}}", True),
    ("columns: {at: {cast: int64}}", False),
    ("columns: {at: {mask: hmac, key: '0123456789abcdef0123456789abcdef'}}", False),
    ("columns: {at: {mask: fixed, text: gone}}", True),
    ("to: [{sink: lake, columns: {at: {cast: string}}}, {sink: lake, into: u}]", False),
    ("to: [{sink: lake, columns: {at: {cast: string}}}, {sink: lake, into: u, columns: {at: drop}}]", True),
    ("to: [{sink: lake, columns: {at: {cast: string}}, where: at is null}]", False),
])  # fmt: skip
def test_column_that_no_target_has_rejects_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, kept: bool
) -> None:
    (tmp_path / "config").mkdir()
    text = CONFIG.replace("    to: [{sink: lake}]\n", "") if said.startswith("to:") else CONFIG
    (tmp_path / "config" / "replicator.yaml").write_text(text.replace("SAID", said))
    (tmp_path / "in").mkdir()
    record = {"topic": TOPIC, "partition": 0, "offset": 0, "timestamp": 1_700_000_000_000, "headers": []}
    text = make_change_event(COLUMNS, after={"id": 1, "day": 1, "at": LATE["at"]}).decode()
    (tmp_path / "in" / "1.jsonl").write_text(
        json.dumps({**record, "key": make_event_key(id=1).decode(), "value": text}) + "\n"
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", "--until-caught-up", "--json", "-q"], catch_exceptions=False)
    assert done.exit_code == (ExitCode.OK if kept else ExitCode.REJECTS), done.output
    assert (tmp_path / "lake" / "t").exists() == kept
    rows = DeltaTable("lake/t").to_pyarrow_table() if kept else None
    assert rows is None or rows["id"].to_pylist() == [1]
    assert "text: gone" not in said or rows is None or rows["at"].to_pylist() == ["gone"]


TEXT_ONLY = "to: [{sink: lake, columns: {at: {cast: string}}SCHEMA}]"
BOTH = "to: [{sink: lake, columns: {at: {cast: string}}SCHEMA}, {sink: lake, into: u}]"


@pytest.mark.parametrize("schema", ["", ", schema_changes: {type_changed: fail, added: ignore}"])
def test_lane_with_a_text_column_does_not_depend_on_other_lanes(tmp_path: Path, monkeypatch: Any, schema: str) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("config", "in"):
        Path(folder).mkdir()
    values = [LATE["at"], 1, 2, EARLY["at"]]
    for offset, (at, said) in enumerate(zip(values, [TEXT_ONLY, BOTH, TEXT_ONLY, TEXT_ONLY], strict=True)):
        text = CONFIG.replace("    to: [{sink: lake}]\n", "").replace("SAID", said.replace("SCHEMA", schema))
        Path("config/replicator.yaml").write_text(text)
        after = {"id": offset, "day": 1, "at": at, **({"more": 1} if offset else {})}
        columns = [*COLUMNS, make_column("more", "int32")] if offset else COLUMNS
        record = {"topic": TOPIC, "partition": 0, "offset": offset, "timestamp": 1_700_000_000_000, "headers": []}
        value = make_change_event(columns, after=after, lsn=100 + offset).decode()
        Path(f"in/{offset}.jsonl").write_text(
            json.dumps({**record, "key": make_event_key(id=offset).decode(), "value": value}) + "\n"
        )
        done = CliRunner().invoke(main, ["run", "--until-caught-up", "--json", "-q"], catch_exceptions=False)
        assert done.exit_code == ExitCode.OK, done.output
    rows = DeltaTable("lake/t").to_pyarrow_table().sort_by("id")
    assert ("more" in rows.column_names) == (not schema)
    first, second = "1970-01-01 00:00:00.000001", "1970-01-01 00:00:00.000002"
    assert rows["at"].to_pylist() == ["infinity", first, second, "-infinity"]
