"""The program replicates archives of recorded binary topics into a lake, with the expected tables."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from servers.schema_registry import API
from support import dts_sales
from support.avro_of_connect import register_schemas
from support.dts_records import SAMPLES
from support.next_layer import LONG_ON_SPARK, run_until_caught_up

pytestmark = pytest.mark.slow

OF_OTHERS = GOLDEN / "decoders" / "risingwave"
ORDERS = {(2, "Alice", 1558430840001, 2, 1), (3, "Alice", 1558430840002, 2, 1)}
TYPES = {"id": "int64", "date": "date32", "name": "string", "sales": "decimal(7,2)"}
RECORDED = ("01_ddl", "02_insert", "03_update", "04_delete")


def write_archive(folder: Path, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    folder.mkdir(parents=True)
    lines = []
    for offset, (key, value) in enumerate(records):
        coded = {n: v and {"base64": base64.b64encode(v).decode()} for n, v in (("key", key), ("value", value))}
        known = {"topic": folder.name, "partition": 0, "offset": offset, "timestamp": [1, 7000], "headers": []}
        lines.append(json.dumps({**known, **coded}) + "\n")
    (folder / "records.jsonl").write_text("".join(lines))


def project(folder: Path, url: str) -> Path:
    """Every archive is a source with a target of the same name."""
    names = {"born": ".bin", "unborn": ".noborn.bin"}
    for name, suffix in names.items():
        write_archive(folder / name, [(None, (SAMPLES / f"{one}{suffix}").read_bytes()) for one in RECORDED])
    write_archive(
        folder / "sales",
        [(None, value) for value in (*dts_sales.make_loaded_messages(), *dts_sales.make_changed_messages())],
    )
    for name in ("compact", "non_compact"):
        raw = register_schemas(OF_OTHERS / f"{name}.txt", url)
        write_archive(folder / name, zip(raw["key"].to_pylist(), raw["value"].to_pylist(), strict=True))
    of_dts, in_avro = {"format": "dts_avro"}, {"format": "debezium_avro", "registry": {"url": url}}
    formats = {**dict.fromkeys((*names, "sales"), of_dts), "compact": in_avro, "non_compact": in_avro}
    table = {**dict.fromkeys(names, "mydb.t1"), "sales": "delta_cdc.sales"}
    more: dict[str, dict[str, Any]] = {
        "sales": {"keys": ["id"], "schema": TYPES},
        "compact": {"tombstones": "delete"},
    }

    def table_entry(name: str) -> dict[str, Any]:
        to = [{"sink": "lake"}, {"sink": "lake", "into": f"{name}_all", "policy": "append"}]
        return {"match": table.get(name, "public.orders"), "source": name, "into": name, "to": to, **more.get(name, {})}

    document = {
        "pipeline": "recorded",
        "sources": {name: {"transport": "archive", "path": f"./{name}", **one} for name, one in formats.items()},
        "sinks": {"lake": {"kind": "delta", "path": "./lake"}},
        "dead_letters": {"path": "./dead_letters"},
        "tables": [table_entry(name) for name in formats],
        "http": {"address": "127.0.0.1:0"},
    }
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(json.dumps(document))
    return folder


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return DeltaTable(str(folder / "lake" / name)).to_pyarrow_table().to_pylist()


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_recorded_topics_give_the_expected_tables(tmp_path: Path, registry: str, engine: str) -> None:
    """DTS topics have or lack the field that servers may leave out. Debezium topics have schemas in a registry. A
    delete of the compacted topic is only a null record."""
    output = run_until_caught_up(project(tmp_path, f"{registry}{API}"), engine)
    assert {lane["counts"]["rejected"] for lane in output["result"]["lanes"]} == {0}
    for name in ("born", "unborn"):
        assert rows(tmp_path, name) == []
        changes = sorted((r["_cdc_op"], r["a"], r["b"]) for r in rows(tmp_path, f"{name}_all"))
        updated = (123456789, "test update statement.")
        assert changes == [("c", 123456789, "test insert statement."), ("d", *updated), ("u", *updated)]
    sales = sorted((r["id"], r["date"], r["name"], r["sales"]) for r in rows(tmp_path, "sales"))
    assert sales == dts_sales.RESULT
    for name in ("compact", "non_compact"):
        columns = ("order_id", "customer_name", "order_date", "product_id", "order_status")
        assert {tuple(r[c] for c in columns) for r in rows(tmp_path, name)} == ORDERS
    assert "d" in {r["_cdc_op"] for r in rows(tmp_path, "compact_all")}
