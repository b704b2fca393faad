"""Sources whose tables may have private columns."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.domain.transform.columns import Mask
from replicator.settings.tables import find_private_columns
from replicator.wiring import adapters

TABLE = """\
  - match: users
    source: mine
    keys: [id]
    {schema}
    columns: {columns}
    to: [{{sink: lake}}]
"""
SCHEMA = "schema: {id: int64, email: string, op: string}"
HMAC = '{email: {mask: hmac, key: "0123456789abcdef"}}'
KAFKA = 'transport: kafka, bootstrap_servers: "b:1", topics: ["a"], group_id: g'


def write(folder: Any, source: str, schema: str = SCHEMA, columns: str = HMAC) -> None:
    text = folder.file.read_text().replace("sources:\n", f"sources:\n  mine: {{{source}}}\n", 1)
    folder.write(text.replace("tables:\n", "tables:\n" + TABLE.format(schema=schema, columns=columns), 1))


@pytest.mark.parametrize(
    ("source", "schema"),
    [
        *((f"format: {kind}, {KAFKA}", SCHEMA) for kind in ("canal_json", "maxwell_json", "ogg_json", "dts_avro")),
        (f"format: debezium_json, flattened: true, {KAFKA}", f"{SCHEMA}\n    tombstones: ignore"),
        (f"format: rows, operation_column: op, {KAFKA}", SCHEMA),
        ("format: rows, transport: files, path: ./in, files: csv, csv: {header: true}", SCHEMA),
        ("format: dms_csv, transport: files, path: ./in", SCHEMA),
        ("format: dms_parquet, transport: files, path: ./in", ""),
        ("format: rows, transport: delta, path: ./in/users", ""),
    ],
)
def test_private_columns_are_accepted(folder: Any, source: str, schema: str) -> None:
    write(folder, source, schema)
    assert folder.load().settings.tables[0].columns["email"].is_private


def test_formats_without_masking_are_refused(folder: Any) -> None:
    write(folder, f"format: of_theirs, {KAFKA}", "")
    found = [finding for finding in folder.findings() if finding.code == "inapplicable"]
    assert [finding.message for finding in found if "cannot be written without them" in finding.message]


LISTED = SCHEMA.replace("op: string", "op: string, tags: 'list<string>'")


@pytest.mark.parametrize(
    "mask", ['mask: hmac, key: "0123456789abcdef"', 'mask: truncate, length: 1, key: "0123456789abcdef"']
)
def test_hash_of_a_list_is_refused(folder: Any, mask: str) -> None:
    write(folder, f"format: rows, {KAFKA}", LISTED, f"{{tags: {{{mask}}}}}")
    finding = folder.only()
    assert finding.message.startswith("tables[0].columns.tags.mask") and "in several ways" in finding.message, finding
    text = folder.file.read_text().replace("to: [{sink: lake}]", f"to: [{{sink: lake, columns: {{tags: {{{mask}}}}}}}]", 1)
    folder.write(text.replace(f"    columns: {{tags: {{{mask}}}}}\n", "", 1))
    assert folder.only().message.startswith("tables[0].to[0].columns.tags.mask")


QUERY = 'format: rows, transport: query, dsn: "postgresql://h/d", table: users, cursor_column: at'


def test_list_can_be_replaced_by_fixed_text(folder: Any) -> None:
    write(folder, f"format: rows, {KAFKA}", LISTED, "{tags: {mask: fixed, text: x}}")
    settings = folder.load().settings
    assert find_private_columns(settings.tables[0], settings.defaults) == {"tags": Mask("fixed", text="x")}


@pytest.mark.parametrize("source", ["format: rows, transport: snapshots, path: ./in/users", QUERY])
def test_masks_are_passed_to_sources_that_store_rows(folder: Any, source: str) -> None:
    write(folder, source, "deletes: ignore")
    loaded = folder.load()
    assert adapters.list_kept_options(loaded, "mine")["private"] == {"email": Mask("hmac", b"0123456789abcdef")}
    assert adapters.build_decoder(loaded, "mine").__reduce__()[1][0].private["users"].keys() == {"email"}


def test_cursor_column_cannot_be_masked(folder: Any) -> None:
    write(folder, QUERY, "deletes: ignore", columns=HMAC.replace("email", "at"))
    assert "masks the 'cursor_column' of source 'mine'" in folder.only().message


def test_operation_and_sequence_columns_cannot_be_masked(folder: Any) -> None:
    source = f"format: rows, operation_column: op, sequence_columns: [id], {KAFKA}"
    write(folder, source, columns=HMAC.replace("email", "op"))
    assert "masks a column with the operations" in folder.only().message


@pytest.mark.parametrize(
    ("source", "names", "told"),
    [
        (f"format: rows, operation_column: op, {KAFKA}", "{email: op}", "masks a column with the operations"),
        (f"format: rows, operation_column: op, {KAFKA}", "{op: email}", "masks a column with the operations"),
        (f"format: rows, sequence_columns: [id, place], {KAFKA}", "{email: place}", "the order of the records"),
        (QUERY, "{email: at}", "masks the 'cursor_column' of source 'mine'"),
    ],
)
def test_renamed_private_column_cannot_be_a_cursor_or_operation(folder: Any, source: str, names: str, told: str) -> None:
    write(folder, source, f"renamed_columns: {names}" + ("\n    deletes: ignore" if source is QUERY else ""))
    finding = folder.only()
    assert told in finding.message and "'renamed_columns'" in finding.message, finding
    assert finding.message.startswith("tables[0].columns.email"), finding
    assert finding.line == next(
        n for n, line in enumerate(folder.file.read_text().splitlines(), 1) if "columns: {email: {mask" in line
    )


def test_renames_of_all_entries_are_followed(folder: Any) -> None:
    """A rename in one entry applies to all entries."""
    source = f"format: rows, operation_column: op, {KAFKA}"
    write(folder, source, "renamed_columns: {email: mail}")
    to = "to: [{sink: lake, renamed_columns: {mail: op}}]"
    folder.write(folder.file.read_text().replace("to: [{sink: lake}]", to, 1))
    assert any("masks a column with the operations" in one.message for one in folder.findings())


OUTBOX = f"format: debezium_outbox, {KAFKA}"


def write_events(folder: Any, columns: str) -> None:
    write(folder, OUTBOX, "", columns)
    folder.write(folder.file.read_text().replace("    source: mine\n    keys: [id]\n", "    source: mine\n", 1))


FIELD = HMAC.replace("email", '"payload.email"')


def test_events_may_have_private_columns_and_fields(folder: Any) -> None:
    """A field is no column of a target; a lane does not look for it."""
    write_events(folder, "{aggregateid: drop, payload.phone: drop, " + FIELD[1:])
    loaded = folder.load()
    (lane,) = loaded.settings.resolve_lanes("users", "mine")
    assert [name for name, _ in lane.row_transforms.column_transforms.rules] == ["aggregateid"]
    assert adapters.build_decoder(loaded, "mine").__reduce__()[1][0].private["users"].keys() == {
        "aggregateid",
        "payload.phone",
        "payload.email",
    }


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (HMAC, "is no column of an outbox's events"),
        (HMAC.replace("email", "aggregatetype"), "masks a column that decides the table"),
        (HMAC.replace("email", "payload"), "makes something else of the payload than JSON"),
        (FIELD.replace("mask", "rename: a, mask"), "names a field of the payload, which can be masked or dropped"),
    ],
)
def test_unknown_columns_of_events_are_refused(folder: Any, columns: str, told: str) -> None:
    write_events(folder, columns)
    assert told in folder.only().message


def test_renamed_aggregate_type_cannot_be_masked(folder: Any) -> None:
    write_events(folder, HMAC.replace("email", "type"))
    more = "    renamed_columns: {type: aggregatetype}\n    to: [{sink: lake}]"
    folder.write(folder.file.read_text().replace("    to: [{sink: lake}]", more, 1))
    assert "masks a column that decides the table" in folder.only().message


def test_fields_are_refused_in_an_entry(folder: Any) -> None:
    write_events(folder, FIELD)
    folder.write(folder.file.read_text().replace("to: [{sink: lake}]", f"to: [{{sink: lake, columns: {FIELD}}}]", 1))
    assert [one.message for one in folder.findings() if "which targets have as a whole" in one.message]
