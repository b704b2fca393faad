"""Declared types of Debezium records without schema."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters


@pytest.mark.parametrize(("said", "named"), [
    ("at: timestamp", "timestamp[ms], timestamp[us] or timestamp[ns]"),
    ("at: Time", "time32[ms], time64[us] or time64[ns]"),
])  # fmt: skip
def test_time_without_unit_is_refused(folder, said, named):
    folder.write(folder.file.read_text().replace("at: timestamptz", said))
    problem = folder.only()
    assert problem.line == folder.file.read_text()[: folder.file.read_text().index(said)].count("\n") + 1
    assert named in str(problem)


@pytest.mark.parametrize("said", ["_id: string, at: timestamp", 'id: int64, at: "timestamp[ms]"'])
def test_documents_and_times_with_units_are_accepted(folder, said):
    folder.write(folder.file.read_text().replace("id: int64, at: timestamptz", said))
    assert folder.load()


def test_decimals_option_is_passed_to_the_decoder(folder):
    source = "  recorded:\n    format: debezium_json\n"
    folder.write(folder.file.read_text().replace(source, f"{source}    decimals: base64\n"))
    assert adapters.build_decoder(folder.load(), "recorded").__reduce__()[1][0].decimals == "base64"
