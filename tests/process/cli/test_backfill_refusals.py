"""`replicator backfill`: impossible backfills are refused before any connection."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from adapters.sources.backfill.database import BackfillTable, DebeziumEvents, SnapshotPoint, refuse_names
from adapters.sources.backfill.postgres import PostgresDatabase
from adapters.sources.backfill.postgres_columns import PostgresColumn as PgColumn
from replicator.application.operations.backfill import BackfillWaiter
from replicator.domain.errors import ConfigProblem, Retryable
from replicator.domain.position import Position, TopicPartition
from replicator.ports.source import BackfillSnapshot
from replicator.ports.stores import RegisterEntry
from replicator.settings import load_settings
from replicator.testing.fakes import FakeSource
from replicator.wiring import adapters, backfill
from replicator.wiring.backfill import _build_reader, backfill_table
from replicator.wiring.components import ConfiguredComponents

CONFIG = """\
pipeline: shop
engine: local
sources:
  shop:
    format: debezium_json
    transport: kafka
    bootstrap_servers: nowhere:9092
    topics: [shop]
    database: {dsn: "postgresql://nobody@127.0.0.1:1/nothing", publication: p, slot: s}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./letters}
tables:
  - match: public.*
    source: shop
    to: [{sink: lake}]
"""
DATABASE = '    database: {dsn: "postgresql://nobody@127.0.0.1:1/nothing", publication: p, slot: s}\n'
CASES = {
    "a table that no entry matches": ("public.*", "sales.*", "no entry of `tables` matches 'public.orders'", "SCHEMA.TABLE"),
    "no database": (DATABASE, "", "has no `database`", "incremental"),
    "another order": ("debezium_json", "maxwell_json", "has the format 'maxwell_json'", "maxwell-bootstrap"),
    "rows of no order": ("debezium_json", "canal_json", "has the format 'canal_json'", "what writes its changes"),
    "the order of the topic": ("    to:", "    tombstones: delete\n    to:", "in the order of their topic", "incremental"),
}


def load_config(folder: Path, text: str):
    path = folder / "config" / "replicator.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return load_settings(path)


@pytest.mark.parametrize("case", CASES)
def test_impossible_backfill_is_refused(tmp_path, case):
    old, new, sentence, step = CASES[case]
    assert old in CONFIG
    with pytest.raises(ConfigProblem) as refused:
        backfill_table(load_config(tmp_path, CONFIG.replace(old, new, 1)), "public.orders", lambda _: None)
    assert sentence in refused.value.sentence and step in refused.value.next_step


READ = {
    "avro and transactions": {
        "debezium_json": "debezium_avro\n    registry: {url: 'http://127.0.0.1:1'}\n    transactions: {topic: t}",
        "[shop]": "[shop, t]",
    },
    "private values": {"    to:": "    columns: {email: {mask: nothing}}\n    to:"},
    "columns of other names": {"{sink: lake}": "{sink: lake, columns: {id: {rename: pk}}}"},
}


@pytest.mark.parametrize("case", READ)
def test_possible_backfill_fails_only_at_the_connection(tmp_path, case):
    """The config is accepted; only the database is unreachable."""
    text = CONFIG
    for old, new in READ[case].items():
        text = text.replace(old, new, 1)
    with pytest.raises(Retryable, match=r"127\.0\.0\.1"):
        backfill_table(load_config(tmp_path, text), "public.orders", lambda _: None)


def test_name_that_avro_does_not_allow_is_refused():
    """The connector writes another name instead, which only its settings define."""
    columns = tuple(SimpleNamespace(name=name) for name in ("id", "a_1", "größe"))
    with pytest.raises(ConfigProblem, match=r"'größe' of public\.orders") as refused:
        refuse_names(BackfillTable("d", "public", "orders", columns, ("id",)))
    assert "incremental" in refused.value.next_step
    refuse_names(BackfillTable("d", "public", "orders", columns[:2], ("id",)))


def test_rows_of_private_tables_are_stored_masked(tmp_path):
    """The decoder of the stream masks them. Other masks start a new backfill, and no output shows their keys."""
    text = CONFIG.replace("    to:", "    columns: {email: {mask: hmac, key: KEY}}\n    to:", 1)
    texts = [text.replace("KEY", word * 16) for word in ("a", "b")]
    readers = [
        _build_reader(load_config(tmp_path / str(n), one), "public.orders", "shop") for n, one in enumerate((*texts, CONFIG))
    ]
    columns = (PgColumn("id", True, "int", "int4", "b", -1), PgColumn("email", False, "text", "text", "b", -1))
    table = BackfillTable("d", "public", "orders", columns, ("id",))
    forms = {reader._describe_form(table) for reader in readers}
    assert len(forms) == 3 and not any("a" * 16 in form for form in forms)
    events = DebeziumEvents(table, PostgresDatabase.log)
    row = events.encode_read('{"id":1,"email":"ann@example.com"}', SnapshotPoint((7,), 5))
    *masked, plain = [
        str(reader._kept.build_records([events.encode_key('{"id":1}')], [row])["value"][0]) for reader in readers
    ]
    assert "ann@example.com" in plain and all("ann@" not in one for one in masked) and masked[0] != masked[1]


def test_engine_without_backfills_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(adapters, "list_names", lambda _: ["kafka", "kafka_spark", "backfills"])
    with pytest.raises(ConfigProblem, match="do not run on the engine 'spark'") as refused:
        backfill_table(
            load_config(tmp_path, CONFIG.replace("engine: local", "engine: spark")), "public.orders", lambda _: None
        )
    assert "--set engine=local" in refused.value.next_step


def test_table_of_two_sources_needs_a_source_name(tmp_path):
    """The name of another source is refused."""
    second = CONFIG[CONFIG.index("  shop:") : CONFIG.index("sinks:")].replace("shop:", "other:").replace("[shop]", "[other]")
    entry = "  - match: public.orders\n    source: other\n    to: [{sink: lake, into: others}]\n"
    loaded = load_config(tmp_path, CONFIG.replace("sinks:", f"{second}sinks:") + entry)
    with pytest.raises(ConfigProblem, match="comes from several sources") as refused:
        backfill_table(loaded, "public.orders", lambda _: None)
    assert "shop, other" in refused.value.next_step
    with pytest.raises(ConfigProblem, match="of source 'third'"):
        backfill_table(loaded, "public.orders", lambda _: None, source="third")


TOPIC = "cdc.public.orders"
OF_OTHERS = RegisterEntry({"public.orders": frozenset([TOPIC])}, {"lake.orders": Position({TopicPartition(TOPIC, 0): 0})})
REFUSED = RegisterEntry(beginnings={"lake.orders (aside.orders)": Position()})


class ReadRows:
    """A backfill that has read an empty table."""

    def __init__(self):
        self.calls = []

    def rows(self, *_, **__):
        self.calls.append("rows")
        return BackfillSnapshot(0, False, (800,), ("id",), "", Position())

    def deletes(self, keys):
        self.calls.append(keys.to_pylist())
        return keys.num_rows, Position()

    def finish(self):
        self.calls.append("finish")

    close = finish


@pytest.mark.parametrize(
    ("before", "after"),
    [(REFUSED, REFUSED), (OF_OTHERS, OF_OTHERS), (RegisterEntry(), REFUSED)],
    ids=["refused", "not_read_yet", "refused_by_the_backfill"],
)
def test_rows_of_another_table_are_not_deleted(tmp_path, monkeypatch, before, after):
    """Two tables have the same target, so a backfill of the second one deletes no rows there."""
    loaded = load_config(tmp_path, CONFIG.replace("public.*", "'*.orders'"))
    write_deltalake(str(tmp_path / "lake" / "orders"), pa.table({"id": [7], "_cdc_seq_1": [5]}))
    register, reader = ConfiguredComponents(loaded).register, ReadRows()
    register.save("shop", before)
    monkeypatch.setattr(backfill, "_build_reader", lambda *_: reader)
    monkeypatch.setattr(adapters, "build_source", lambda *_: FakeSource())
    monkeypatch.setattr(BackfillWaiter, "wait", lambda *_: register.save("shop", after))
    with pytest.raises(ConfigProblem, match=r"aside\.orders both go to orders in sink lake"):
        backfill_table(loaded, "aside.orders", lambda _: None)
    assert reader.calls == (["rows", "finish"] if before != after else [])
