"""Recorded messages of Canal and Maxwell, from an archive through the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.next_layer import LONG_ON_SPARK, run_until_caught_up

pytestmark = pytest.mark.slow
"""The program starts in each."""

SAMPLES = GOLDEN / "decoders" / "messages"
CONFIG = """\
pipeline: shop
sources:
  recorded: {{format: {kind}_json, transport: archive, path: ./archive}}
sinks:
  lake: {{kind: delta, path: ./lake}}
dead_letters: {{path: ./lake/_replicator/dead_letters}}
tables:
  - match: {match}
    source: recorded
    {more}
    to: [{{sink: lake}}, {{sink: lake, into: versions, policy: scd2}}]
http: {{address: "127.0.0.1:0"}}
"""
KEYS = "\n    keys: [id]"
PRODUCTS = "schema: {id: int32, name: string, description: string, weight: string}" + KEYS
PEOPLE = "schema: {id: int64, name: string, is_adult: bool, birthday: 'timestamp[us]'}" + KEYS
STAYS = {1: "4.56", 2: "8.1", 3: "0.8", 4: "0.75", 5: "0.875", 6: "1.0", 7: "7.88", 8: "0.1"}


def make_project(path: Path, sample: str, match: str, more: str = "") -> Path:
    (path / "config").mkdir()
    settings = "\n    ".join(more.split(", keys")).replace("\n    : ", "\n    keys: ")
    config = CONFIG.format(kind=sample.split("-", maxsplit=1)[0], match=match, more=settings)
    (path / "config" / "replicator.yaml").write_text(config)
    (path / "archive").mkdir()
    texts = [text for text in (SAMPLES / f"{sample}.jsonl").read_text().splitlines() if text.strip()]
    known = {"topic": "binlog", "partition": 0, "timestamp": [1, 7000], "headers": [], "key": None}
    records = (json.dumps({**known, "offset": n, "value": text}) + "\n" for n, text in enumerate(texts))
    (path / "archive" / "binlog.jsonl").write_text("".join(records))
    return path


def read_rows(project: Path, name: str) -> list[dict]:
    return DeltaTable(str(project / "lake" / name)).to_pyarrow_table().to_pylist()


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_canal_message_with_several_rows(tmp_path: Path, engine: str) -> None:
    """The rows get other keys and are deleted under these. Only the earlier rows remain."""
    said = run_until_caught_up(make_project(tmp_path, "canal-keys", "demo.demo", "keys: [v1]"), engine)
    assert [lane["counts"]["rejected"] for lane in said["result"]["lanes"]] == [0, 0]
    assert read_rows(tmp_path, "demo") == []
    versions = [(r["v1"], r["v2"], r["__END_AT"] is None) for r in read_rows(tmp_path, "versions")]
    assert sorted(versions) == [(1, 2, False), (3, 4, False), (5, 6, False), (7, 8, False)]


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
@pytest.mark.parametrize(
    ("sample", "first", "more"), [("canal", 1100, ""), ("maxwell", 100, PRODUCTS)], ids=["canal", "maxwell"]
)
def test_products(tmp_path: Path, engine: str, sample: str, first: int, more: str) -> None:
    """Statements between the changes are skipped."""
    match = {"canal": "canal_hvygfc.products", "maxwell": "maxwell_eal7e6.products"}[sample]
    said = run_until_caught_up(make_project(tmp_path, f"{sample}-products", match, more), engine)
    assert [lane["counts"]["rejected"] for lane in said["result"]["lanes"]] == [0, 0]
    assert {r["id"] - first: r["weight"] for r in read_rows(tmp_path, "products")} == STAYS
    assert len(read_rows(tmp_path, "versions")) == 11
    assert sum(r["__END_AT"] is None for r in read_rows(tmp_path, "versions")) == len(STAYS)


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_people_of_maxwell(tmp_path: Path, engine: str) -> None:
    """Numbers are booleans if the table declares it."""
    run_until_caught_up(make_project(tmp_path, "maxwell-t", "test.t", PEOPLE), engine)
    assert sorted((r["id"], r["name"], r["is_adult"]) for r in read_rows(tmp_path, "t")) == [
        (1, "tom", False),
        (2, "chi", True),
    ]
