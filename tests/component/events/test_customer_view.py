"""The view in the documentation, with its example of customer C101."""

from __future__ import annotations

from datetime import datetime

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from paths import PROJECT

from adapters.sinks.delta.event_store import DeltaEventStore
from replicator.domain.events import make_event

DOCUMENT = PROJECT / "docs" / "how-to" / "store-events.md"
VIEW = DOCUMENT.read_text(encoding="utf-8").partition("```sql\n")[2].partition("```")[0]
TYPED = "aggregate_type = 'Customer'"


@pytest.fixture
def store(tmp_path):
    return DeltaEventStore({"path": str(tmp_path)})


def emit(store, of, kind, **data) -> datetime:
    (done,) = store.append([make_event(of, "Customer", kind, data)])
    return done.event.created_at


def read_view(folder, at=None):
    events = pa.RecordBatchReader.from_stream(DeltaTable(folder).scan()).read_all()  # noqa: F841 - read by the query
    query = VIEW if at is None else VIEW.replace(TYPED, f"{TYPED} AND created_at <= '{at.isoformat()}'::timestamptz")
    return sorted(duckdb.sql(query).fetchall())


def test_documented_view_shows_the_customer(store, tmp_path):
    created = emit(store, "C101", "CustomerCreated", name="Alice Johnson", email="alice@email.com", city="NYC")
    moved = emit(store, "C101", "CustomerAddressChanged", old_city="NYC", new_city="LA", change_reason="relocation")
    emit(store, "C102", "CustomerCreated", name="Bob", email="bob@email.com", city="SF")
    emit(store, "C101", "CustomerEmailUpdated", old_email="alice@email.com", new_email="alice.new@email.com")
    alice, bob = ("C101", "Alice Johnson", "alice.new@email.com", "LA", 3), ("C102", "Bob", "bob@email.com", "SF", 1)
    assert read_view(tmp_path) == [alice, bob]
    assert read_view(tmp_path, created) == [("C101", "Alice Johnson", "alice@email.com", "NYC", 1)]
    assert read_view(tmp_path, moved) == [("C101", "Alice Johnson", "alice@email.com", "LA", 2)]
    emit(store, "C102", "CustomerDeleted")
    assert read_view(tmp_path) == [alice]
