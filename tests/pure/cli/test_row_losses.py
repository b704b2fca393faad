"""Connectors that may lose rows are reported wherever a source is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.http.status_page import render
from replicator.application.state_folder import FileRegister
from replicator.cli.status import _make_view
from replicator.domain.errors import ExitCode
from replicator.ports.stores import RegisterEntry
from replicator.wiring.configuration import read_config
from replicator.wiring.daemon import DaemonContainer

CONFIG = """\
pipeline: shop
limits: {batch_bytes: 1}
sources:
  shop: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./dead}
tables:
  - {match: public.t, source: shop, schema: {id: int64}, to: [{sink: lake}]}
"""
BLOCK = {"id": "5:100", "total_order": 1, "data_collection_order": 1}
COPY = "may lose rows when it is restarted: rows of one COPY"
OPEN = "and rows of transactions that are open meanwhile"
NEWER = "PostgreSQL 17 or newer"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    (tmp_path / "archive").mkdir()
    return tmp_path


def append(
    project: Path, snapshot: str, transaction: dict[str, Any] | None, version: str = "3.5.0.Final", **changed: str
) -> None:
    """One more record of the table."""
    file = project / "archive" / "t.jsonl"
    before = file.read_text().splitlines() if file.exists() else []
    place = len(before)
    source = {
        **{"version": version, "connector": "postgresql", "name": "cdc", "db": "shop", "schema": "public", "table": "t"},
        **{"snapshot": snapshot, "ts_ms": 1_700_000_000_000 + place, "txId": 5, "lsn": 100 + place},
        "sequence": json.dumps([str(99 + place), str(100 + place)]),
        **changed,
    }
    op = "c" if snapshot == "false" else "r"
    value = {"before": None, "after": {"id": place}, "source": source, "op": op, "transaction": transaction, "ts_ms": 1}
    record = {"topic": "cdc.public.t", "partition": 0, "offset": place, "timestamp": 1_700_000_000_000, "headers": []}
    line = json.dumps({**record, "key": json.dumps({"id": place}), "value": json.dumps(value)})
    file.write_text("\n".join([*before, line]) + "\n")


def run(project: Path, event: str = "rows may be lost") -> tuple[dict[str, Any], int]:
    """The daemon's status after a run, and how often the log has the event."""
    with capture_logs() as logged:
        container = DaemonContainer(loaded=read_config(project / "config" / "replicator.yaml", None, ()))
        assert container.supervisor().run(once=True) is ExitCode.OK
    return container.views().status(), sum(entry["event"] == event for entry in logged)


def get_sentence(status: dict[str, Any]) -> str:
    (source,) = status["sources"]
    return str(source["row_loss"]["sentence"])


def test_possible_row_loss_is_in_status_and_on_the_page(project: Path) -> None:
    append(project, "false", BLOCK)
    status, logged = run(project)
    assert get_sentence(status) == f"Debezium's PostgreSQL connector 3.5.0.Final {COPY}, {OPEN} ({NEWER})."
    assert logged == 1
    step = status["sources"][0]["row_loss"]["next_step"]
    assert "`replicator backfill TABLE`" in step and "provide.transaction.metadata=false" in step
    lines = _make_view(status, 200).plain.splitlines()
    assert lines[lines.index(f"source shop: {get_sentence(status)}") + 1] == f"  {step}"
    page = render(status)
    assert f"rows of transactions that are open meanwhile ({NEWER})" in page and "replicator backfill TABLE" in page


def test_connector_without_row_loss_is_not_reported(project: Path) -> None:
    append(project, "false", BLOCK, version="3.7.0.Final")
    status, logged = run(project)
    assert (status["sources"][0]["row_loss"], logged) == (None, 0)
    assert "may lose" not in _make_view(status, 200).plain + render(status)


@pytest.mark.slow
def test_records_show_if_the_connector_sends_transaction_metadata(project: Path) -> None:
    """Snapshot records do not show it, and change nothing."""
    hedged = f"{COPY}, {OPEN} ({NEWER} with provide.transaction.metadata=true)."
    for snapshot, block, sentence, times in (
        ("first", None, hedged, 1),
        ("false", None, f"{COPY}.", 2),  # Once at the start, by what was known before.
        ("incremental", None, f"{COPY}.", 1),
        ("false", BLOCK, f"{COPY}, {OPEN} ({NEWER}).", 2),
        ("incremental", None, f"{COPY}, {OPEN} ({NEWER}).", 1),
    ):
        append(project, snapshot, block)
        status, logged = run(project)
        assert get_sentence(status).endswith(sentence), (snapshot, get_sentence(status))
        assert logged == times, snapshot


@pytest.mark.slow
def test_connectors_of_one_source_are_kept_apart(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state does not change with each batch, so the register is not written for each."""
    saved: list[RegisterEntry] = []
    save = FileRegister.save
    monkeypatch.setattr(FileRegister, "save", lambda self, name, seen: (saved.append(seen), save(self, name, seen)))
    for _ in range(5):
        append(project, "false", BLOCK)
        append(project, "false", BLOCK, connector="mysql")
        append(project, "false", BLOCK, version="3.7.0.Final", name="erp")
    status, logged = run(project)
    assert get_sentence(status).startswith("Debezium's PostgreSQL connector 3.5.0.Final") and logged == 1
    assert len(saved) < 10
    assert get_sentence(run(project)[0]) == get_sentence(status), "the next start knows them"


def test_possible_row_loss_before_an_upgrade_is_reported(project: Path) -> None:
    append(project, "false", BLOCK)
    assert run(project, "rows may have been lost")[1] == 0
    for _ in range(2):
        append(project, "false", BLOCK, version="3.7.0.Final")
    status, logged = run(project, "rows may have been lost")
    assert (status["sources"][0]["row_loss"], logged) == (None, 1)
