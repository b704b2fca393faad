"""The notebook that is shipped, executed over a lake as the shipped pipeline makes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from paths import PROJECT
from support.debezium_events import encode_with_schema, make_column, make_envelope_schema, make_payload
from support.small_spark import SMALL

from replicator.cli import main
from replicator.domain.errors import Fatal
from replicator.notebook import load_history, load_table

NOTEBOOK = PROJECT / "notebooks" / "deltalake-query.ipynb"
CUSTOMERS = (make_column("id", "int64", optional=False), make_column("email", "string"))
ORDERS = (
    make_column("id", "int64", optional=False),
    make_column("customer_id", "int64"),
    make_column("total_amount", "double"),
)
CONFIG = """\
pipeline: shop
sources:
  recorded: {{format: debezium_json, transport: archive, path: {folder}/archive}}
sinks:
  lake: {{kind: delta, path: {folder}/lake}}
  raw: {{kind: event_log, path: {folder}/lake/cdc_events}}
dead_letters: {{path: {folder}/letters}}
state: {folder}/state
tables:
  - match: public.*
    source: recorded
    to: [{{sink: raw}}, {{sink: lake}}]
http: {{address: "127.0.0.1:0"}}
spark: {spark}
"""


def write_records(
    folder: Path, table: str, columns: Any, offset: int, events: list[tuple[str, dict[str, Any] | None, Any]]
) -> None:
    schema = make_envelope_schema(columns, table)
    with (folder / "archive" / f"{table}.jsonl").open("a") as out:
        for at, (op, after, before) in enumerate(events, offset):
            value = encode_with_schema(schema, make_payload(op, after, before, at + 1, source={"table": table})).decode()
            row = (after or before or {})["id"]
            key = {"schema": {"type": "struct", "fields": [columns[0]], "optional": False}, "payload": {"id": row}}
            place = {"topic": f"cdc.public.{table}", "partition": 0, "offset": at, "timestamp": None, "headers": None}
            out.write(json.dumps(place | {"key": json.dumps(key), "value": value}) + "\n")


def run_pipeline(config: Path) -> None:
    done = CliRunner().invoke(main, ["run", "-c", str(config), "--until-caught-up"])
    assert done.exit_code == 0, done.output


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two customers, one of whom changes later, and two orders of one customer."""
    (tmp_path / "config").mkdir()
    (tmp_path / "archive").mkdir()
    config = tmp_path / "config" / "replicator.yaml"
    config.write_text(CONFIG.format(folder=tmp_path, spark=json.dumps(SMALL)))
    write_records(
        tmp_path,
        "customers",
        CUSTOMERS,
        0,
        [("c", {"id": 1, "email": "ada@x.org"}, None), ("c", {"id": 2, "email": "b"}, None)],
    )
    orders = [{"id": n, "customer_id": 1, "total_amount": n * 10.5} for n in (1, 2)]
    write_records(tmp_path, "orders", ORDERS, 0, [("c", order, None) for order in orders])
    run_pipeline(config)
    write_records(tmp_path, "customers", CUSTOMERS, 2, [("u", {"id": 1, "email": "ada@y.org"}, None)])
    run_pipeline(config)
    return tmp_path


def test_history_of_a_row_with_a_key_of_bytes(shop: Path) -> None:
    columns = (make_column("id", "bytes", optional=False), make_column("email", "string"))
    write_records(shop, "devices", columns, 0, [("c", {"id": "AQ+f", "email": "a"}, None)])
    config = shop / "config" / "replicator.yaml"
    run_pipeline(config)
    (entry,) = load_history("public.devices", b"\x01\x0f\x9f", config=config)
    assert entry["after"] == {"id": b"\x01\x0f\x9f", "email": "a"}


def format_output(cell: Any) -> str:
    """The output of a cell as text. A plot is the text `(image)`."""
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    images = ["(image)" for output in cell.outputs if "image/png" in output.get("data", {})]
    return "\n".join([*parts, *images])


def test_vacuumed_versions_do_not_end_the_notebook(shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("REPLICATOR_CONFIG", str(shop / "config" / "replicator.yaml"))
    monkeypatch.setenv("LAKE", str(shop / "lake"))
    customers = DeltaTable(str(shop / "lake" / "customers"))
    customers.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    _, _, listing, counting, comparing, *_ = cells
    names: dict[str, Any] = {"TABLE": "customers", "DeltaTable": DeltaTable, "load_table": load_table, "Fatal": Fatal}
    for cell in (listing, counting, comparing.partition("\n")[0]):
        exec(cell, names)
    assert names["rows"] == {4: 2, 3: 2, 2: 2}, "a vacuum is two commits"
    assert "its files were cleaned away" in capsys.readouterr().out
    assert names["before"] == names["after"] == load_table("customers")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_notebook_runs(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("REPLICATOR_CONFIG", str(shop / "config" / "replicator.yaml"))
    monkeypatch.setenv("LAKE", str(shop / "lake"))
    read = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in read.cells), "it is kept without outputs"
    nbclient.NotebookClient(read, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    told = {cell.source.partition("\n")[0]: format_output(cell) for cell in read.cells if cell.cell_type == "code"}
    text = "\n".join(told.values())
    assert "ada@y.org" in told["load_table(TABLE, limit=10).to_pandas()"]
    assert "{2: 2, 1: 2, 0: 0}" in text, "rows by version"
    assert "['email']" in text, "what differs in the life of the row"
    assert text.count("31.5") == 2, "by DuckDB and by Spark"
    assert "(image)" in told['changes = load_audit(f"public.{TABLE}")']
