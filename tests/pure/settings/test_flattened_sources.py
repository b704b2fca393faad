"""Sources of flattened rows: their tables configure the meaning of records without a value."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters

SOURCE = "  recorded:\n    format: debezium_json\n    transport: archive\n    path: ./archive\n"
TABLE = "  - match: audit.log\n    source: recorded\n    policy: append\n"


@pytest.fixture
def change_source(folder):
    def change(said: str = "flattened: true", table: str = "") -> None:
        text = folder.file.read_text().replace(SOURCE, f"{SOURCE}    {said}\n")
        folder.write(text.replace(TABLE, TABLE + "".join(f"    {line}\n" for line in table.split("\n") if line)))

    return change


@pytest.mark.parametrize("said", ["delete", "ignore"])
def test_option_is_passed_to_the_decoder_only(folder, change_source, said):
    change_source(table=f"tombstones: {said}")
    loaded = folder.load()
    assert adapters.build_decoder(loaded, "recorded").__reduce__()[1][0].flattened is True
    assert "flattened" not in adapters.list_options(loaded.settings.sources["recorded"])


def test_tables_need_the_tombstones_option(folder, change_source):
    change_source()
    problem = folder.only()
    assert problem.code == "missing" and "records without a value" in problem.message, str(problem)
    assert "tombstones: delete" in str(problem)


@pytest.mark.parametrize(("said", "code", "message"), [
    ("flattened: true\n    transactions: {topic: a.transaction}", "contradiction", "both 'transactions' and 'flattened'"),
    ("flattened: perhaps", "type", "flattened"),
])  # fmt: skip
def test_contradicting_options_are_refused(folder, change_source, said, code, message):
    change_source(said, "tombstones: delete")
    [finding, *_] = [f for f in folder.findings() if f.code == code]
    assert message in finding.message


def test_other_formats_refuse_flattened(folder, change_source):
    change_source(table="tombstones: delete")
    folder.write(folder.file.read_text().replace(SOURCE, SOURCE.replace("debezium_json", "maxwell_json")))
    [finding, *_] = [f for f in folder.findings() if f.code == "inapplicable"]
    assert "'flattened'" in finding.message
