"""Sources of outbox events: their keys, and conditions and columns of their tables."""

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
        text = folder.file.read_text().replace("    schema: {id: int64, at: timestamptz}\n", "")
        table = TABLE + (f"    {of_table}\n" if of_table else "")
        folder.write(text.replace(OTHER, source + (f"    {said}\n" if said else "")).replace(TABLE, table))

    return change


def test_table_and_column_names_are_passed_to_the_decoder(folder, outbox):
    outbox('outbox: {route_to: "events.{aggregatetype}", columns: {payload: body}}')
    loaded = folder.load()
    assert adapters.list_options(loaded.settings.sources["recorded"]) == {"path": str(folder.root / "archive")}
    told = adapters.build_decoder(loaded, "recorded")._routing._options.outbox
    assert told.to_table("order") == "events.order" and told.columns == {"payload": "body"}


def test_outbox_options_have_defaults(folder, outbox):
    outbox()
    assert adapters.build_decoder(folder.load(), "recorded")._routing._options.outbox.to_table("a") == "outbox.event.a"


WRONG = [
    ("outbox: {route_to: events}", "", "route_to must hold {aggregatetype} once, and no other braces"),
    ('outbox: {route_to: "{aggregatetype}.{aggregatetype}"}', "", "route_to must hold {aggregatetype} once"),
    ("outbox: {columns: {name: x}}", "", "columns"),
    ("", "keys: [id]", "columns are fixed"),
    ("", "schema: {id: int64}", "columns are fixed"),
    ("", "tombstones: delete", "columns are fixed"),
]


@pytest.mark.parametrize(("said", "of_table", "told"), WRONG)
def test_invalid_options_are_refused(folder, outbox, said, of_table, told):
    outbox(said, of_table)
    assert any(told in str(finding) for finding in folder.findings())


def to_lake(folder, more=""):
    text = folder.file.read_text()
    at = text.index("    to:", text.index("match: audit.log"))
    folder.write(text[:at] + text[at:].replace("- sink: target", f"- {{sink: lake{more}}}", 1))


@pytest.mark.parametrize(
    ("said", "at", "told"),
    [
        ("where: nope = 1", "tables[2].where", "names 'nope', which is no column of an outbox's events"),
        ("where: event_offset = 'a'", "tables[2].where", "compares"),
        ("sequence_by: at", "tables[2].sequence_by", "names 'at'"),
        ("column_list: [id, body]", "tables[2].column_list", "names 'body'"),
        ("columns: {body: {rename: text}}", "tables[2].columns.body", "is no column of an outbox's events"),
        ("columns: {who: {expression: upper(name)}}", "tables[2].columns.who", "names 'name'"),
        ("columns: {type: {rename: ID}}", "tables[2].columns.type", "makes another column of the name 'ID'"),
        ("partition_by: [day]", "tables[2].partition_by", "names 'day'"),
    ],
)
def test_unknown_columns_of_events_are_refused(folder, outbox, said, at, told):
    outbox(of_table=said)
    to_lake(folder)
    finding = folder.only()
    assert finding.message.startswith(at) and told in finding.message, finding
    line = next(n for n, text in enumerate(folder.file.read_text().splitlines(), 1) if said.split(":")[0] + ":" in text)
    assert finding.line >= line


def test_condition_of_an_entry_has_its_line(folder, outbox):
    outbox()
    to_lake(folder, ", where: typ = 'placed'")
    finding = folder.only()
    assert "to[" in finding.message and "names 'typ'" in finding.message and "'type'" in finding.suggestion


@pytest.mark.parametrize(
    ("said", "added"),
    [
        ("where: type = 'placed' and event_offset > 5\n    columns: {day: {constant: 1}, type: {rename: kind}}", "day"),
        ("partition_by: [kind, at]\n    columns: {at: {metadata: source_time}, type: {rename: kind}}", "at"),
    ],
)
def test_columns_of_events_are_accepted(folder, outbox, said, added):
    outbox(of_table=said)
    to_lake(folder)
    remade = adapters.build_lane(
        loaded := folder.load(), loaded.settings.resolve_lanes("audit.log", "recorded")[0]
    ).row_transforms.column_transforms
    assert (remade.get_new_name("type"), [name for name, _ in remade.additions]) == ("kind", [added])


def test_other_formats_refuse_outbox(folder, outbox):
    outbox("outbox: {}", source=OTHER)
    told = "key 'outbox' in sources.recorded means nothing with format 'debezium_json'"
    assert told in folder.only().message
