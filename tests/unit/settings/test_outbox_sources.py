"""Sources of an outbox's events: which keys they have, and that no other has them."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters

OUTBOX = "  recorded:\n    format: debezium_outbox\n    transport: archive\n    path: ./archive\n"
OTHER = OUTBOX.replace("debezium_outbox", "debezium_json")
TABLE = "  - match: audit.log\n    source: recorded\n    policy: append\n"


@pytest.fixture
def outbox(folder):
    """Puts `said` behind the keys of the source, `of_table` behind those of its table."""

    def change(said: str = "", of_table: str = "", source: str = OUTBOX) -> None:
        text = folder.file.read_text().replace("    schema: {id: int64, at: timestamp}\n", "")
        table = TABLE + (f"    {of_table}\n" if of_table else "")
        folder.write(text.replace(OTHER, source + (f"    {said}\n" if said else "")).replace(TABLE, table))

    return change


def test_the_decoder_is_told_what_tables_and_columns_are_called(folder, outbox):
    outbox('outbox: {route_to: "events.{aggregatetype}", columns: {payload: body}}')
    loaded = folder.load()
    assert adapters.options(loaded.settings.sources["recorded"]) == {"path": str(folder.root / "archive")}
    told = adapters.decoder(loaded, "recorded")._routing._options.outbox
    assert told.table_of("order") == "events.order" and told.columns == {"payload": "body"}


def test_it_needs_to_say_nothing(folder, outbox):
    outbox()
    assert adapters.decoder(folder.load(), "recorded")._routing._options.outbox.table_of("a") == "outbox.event.a"


WRONG = [
    ("outbox: {route_to: events}", "", "route_to"),
    ('outbox: {route_to: "{aggregatetype}.{aggregatetype}"}', "", "route_to"),
    ("outbox: {columns: {name: x}}", "", "columns"),
    ("", "keys: [id]", "columns are fixed"),
    ("", "schema: {id: int64}", "columns are fixed"),
    ("", "tombstones: delete", "columns are fixed"),
]


@pytest.mark.parametrize(("said", "of_table", "told"), WRONG)
def test_what_is_wrong_is_said(folder, outbox, said, of_table, told):
    outbox(said, of_table)
    assert any(told in str(finding) for finding in folder.findings())


def test_no_other_format_has_it(folder, outbox):
    outbox("outbox: {}", source=OTHER)
    told = "key 'outbox' in sources.recorded means nothing with format 'debezium_json'"
    assert told in folder.only().message
