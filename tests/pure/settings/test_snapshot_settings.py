"""Checkpoints and the retention of event logs: options and refusals."""

from __future__ import annotations

import pytest

from adapters.stores import EventLogSettings
from replicator.domain.errors import ConfigProblem
from replicator.ports.adapter_options import LogSinkOptions

PATH = "    path: ./lake/cdc_events\n"
REFUSED = {
    "no schedule": ("snapshots: {keep: 3}", "needs 'every' or 'after_records'"),
    "no time": ("snapshots: {every: often}", "such as 30 seconds"),
    "none kept": ("snapshots: {every: 1 day, keep: 0}", "keep"),
    "another key": ("snapshots: {each: 1 day}", "each"),
    "nothing to begin with": ("retention: 30 days", "needs 'snapshots'"),
    "no length": ("retention: 0 days", "longer than none"),
    "no time between": ("snapshots: {every: 0 days}", "longer than none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_options_are_refused_with_their_line(folder, case):
    """The line of the key, or of the sink if keys contradict each other."""
    more, words = REFUSED[case]
    line = folder.change(PATH, f"{PATH}    {more}\n")
    findings = [one for one in folder.findings() if one.severity == "error"]
    assert findings and {one.line for one in findings} <= {line, line - 3}, [str(one) for one in findings]
    assert any(words in str(one) for one in findings)


def test_checkpoints_need_a_log_in_a_local_folder(folder):
    folder.change(PATH, "    path: s3://bucket/log\n    snapshots: {every: 1 day}\n")
    assert any("only if 'path' is a local folder" in str(one) for one in folder.findings())


def test_retention_works_with_every_engine(folder):
    folder.change(PATH, f"{PATH}    snapshots: {{every: 1 day}}\n    retention: 30 days\n")
    assert folder.load(overrides=["engine=spark"]).settings.sinks


def test_checkpoints_of_a_second_log_are_refused(folder):
    """The past of a table is read from its first log."""
    other = "  more:\n    kind: event_log\n    path: ./more\n    snapshots: {every: 1 day}\n"
    folder.change("  target:\n", f"{other}  target:\n")
    text = folder.file.read_text().replace("      - sink: raw\n", "      - sink: raw\n      - sink: more\n", 1)
    folder.write(text)
    found = [one for one in folder.findings() if one.code == "inapplicable"]
    assert len(found) == 1 and "has another target" in found[0].message


def test_checkpoints_with_a_first_log_in_an_object_store_are_refused(folder):
    """The past of a table is read from its first log in a lake, and that log has no checkpoints there."""
    folder.change(PATH, f"{PATH}    snapshots: {{every: 1 day}}\n  more:\n    kind: event_log\n    path: s3://bucket/log\n")
    text = folder.file.read_text().replace("      - sink: raw\n", "      - sink: more\n      - sink: raw\n")
    folder.write(text)
    found = [one for one in folder.findings() if one.code == "inapplicable"]
    assert len(found) == 1 and "no table whose history is read from 'raw'" in found[0].message


def test_log_of_a_package_in_a_folder_is_in_no_database():
    class BoxOptions(LogSinkOptions):
        path: str

        @property
        def folder(self) -> str:
            return self.path

    assert not BoxOptions(path="box").is_in_database and LogSinkOptions().is_in_database


def test_options_of_checkpoints(folder):
    folder.change(PATH, f"{PATH}    snapshots: {{every: 6 hours, after_records: 1000000}}\n    retention: 30 days\n")
    said = folder.load().settings.sinks["raw"]
    assert isinstance(said, EventLogSettings) and said.snapshots is not None
    assert (said.snapshots.every, said.snapshots.after_records, said.snapshots.keep) == ("6 hours", 1_000_000, 2)
    assert said.retention == "30 days"


def test_path_with_dots_is_read_unchanged():
    """`replicator -c ../shop/config/replicator.yaml`: commands pass on paths below that folder."""
    assert EventLogSettings.read({"path": "/x/other/../shop/lake/cdc_events"}).path == "/x/other/../shop/lake/cdc_events"
    with pytest.raises(ConfigProblem, match="leaves its folder"):
        EventLogSettings.read({"path": "../lake"})
