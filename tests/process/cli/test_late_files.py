"""Files of an archive with records older than the first records of their topic."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from replicator.cli import main
from replicator.domain.errors import ExitCode
from replicator.pipelines.program_run import RunFailed, run_pipeline
from replicator.settings import load_settings

CONFIG = """\
pipeline: shop
sources: {{s: {{format: debezium_json, transport: archive, path: ./in{mode}}}}}
sinks: {{lake: {{kind: delta, path: ./lake}}}}
tables: [{{match: "public.*", source: s, keys: [id], schema: {{id: int64}}, to: [{{sink: lake}}]}}]
http: {{address: "127.0.0.1:0"}}
"""


def write_file(folder: Path, name: str, *offsets: int, table: str = "t") -> None:
    """Adds a whole file of inserts. The ids of the rows are their offsets."""
    records = []
    for offset in offsets:
        source = {"connector": "mysql", "db": "public", "table": table, "file": "b.1", "pos": offset + 1, "row": 0}
        value = {"before": None, "after": {"id": offset}, "op": "c", "ts_ms": 5, "source": {**source, "ts_ms": 5}}
        one = {"topic": f"cdc.public.{table}", "partition": 0, "offset": offset, "timestamp": 5}
        records.append({**one, "key": json.dumps({"id": offset}), "value": json.dumps(value)})
    new = folder / f"{name}.new"
    new.write_text("".join(json.dumps(record) + "\n" for record in records))
    new.rename(folder / "in" / name)


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("config", "in"):
        (tmp_path / folder).mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.format(mode=getattr(request, "param", "")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(*arguments: str, code: ExitCode = ExitCode.OK) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == code, done.output
    return done.output


def run_until_caught_up(code: ExitCode = ExitCode.OK) -> str:
    return run_command("run", "--until-caught-up", code=code)


def read_ids() -> list[Any]:
    return sorted(DeltaTable("lake/t").to_pyarrow_table()["id"].to_pylist())


def await_registered(project: Path, table: str) -> None:
    """Waits until the register contains the table's topic."""
    while not any(f'"cdc.public.{table}"' in path.read_text() for path in project.glob("state/**/s.json")):
        time.sleep(0.05)


def run_daemon(project: Path, step: Callable[[threading.Event], object]) -> None:
    """Runs until `step`, in another thread, stops it, or until it stops by itself."""
    stop = threading.Event()
    helper = threading.Thread(target=step, args=(stop,), daemon=True)
    helper.start()
    run_pipeline(load_settings(project / "config" / "replicator.yaml"), once=False, stop=stop, served=False)
    helper.join()


@pytest.mark.parametrize("project", ["", ", mode: batch"], ids=["stream", "batch"], indirect=True)
def test_missing_records_are_reported_until_the_lane_is_reloaded(project: Path) -> None:
    write_file(project, "2.jsonl", 3, 4, 5)
    run_until_caught_up()
    write_file(project, "1.jsonl", 0, 1, 2)
    for _ in range(2):
        said = run_until_caught_up(ExitCode.DATA_LOSS)
        assert "Lane lake.t lacks the records at offsets 0 to 2 of cdc.public.t[0]" in said and "lanes resync lake.t" in said
    (project / "in" / "1.jsonl").rename(project / "kept")
    run_until_caught_up()
    (project / "kept").rename(project / "in" / "1.jsonl")
    run_command("lanes", "resync", "lake.t", "--yes")
    run_until_caught_up()
    assert read_ids() == [*range(6)]
    # Older files that were applied may go, and come back.
    (project / "in" / "1.jsonl").rename(project / "kept")
    write_file(project, "3.jsonl", 6)
    run_until_caught_up()
    (project / "kept").rename(project / "in" / "1.jsonl")
    run_until_caught_up()
    assert read_ids() == [*range(7)]


def test_late_table_in_a_topic_misses_nothing(project: Path) -> None:
    write_file(project, "1.jsonl", 0, 1)
    run_until_caught_up()
    write_file(project, "2.jsonl", 2)
    other = (project / "in" / "2.jsonl").read_text().replace('\\"table\\": \\"t\\"', '\\"table\\": \\"new\\"')
    (project / "in" / "2.jsonl").write_text(other)
    run_until_caught_up()
    run_until_caught_up()
    assert "lake.new" in run_command("status")


def test_decreasing_offsets_are_reported_with_both_files(project: Path) -> None:
    write_file(project, "1.jsonl", 3, 4)
    write_file(project, "2.jsonl", 0)
    said = run_until_caught_up(ExitCode.DATA_LOSS)
    assert "Record 0 of cdc.public.t[0] was found in 2.jsonl after record 3, in 1.jsonl," in said
    assert "rename the files" in said and "no table matched" not in said


def test_running_daemon_reports_missing_records(project: Path) -> None:
    write_file(project, "2.jsonl", 3, 4)

    def step(_: threading.Event) -> None:
        await_registered(project, "t")
        write_file(project, "1.jsonl", 0, 1, 2)

    with pytest.raises(RunFailed, match=r"lacks the records at offsets 0 to 2 of cdc.public.t\[0\]") as failed:
        run_daemon(project, step)
    assert failed.value.exit_code is ExitCode.DATA_LOSS


def test_topic_starts_at_the_first_record_that_a_daemon_read(project: Path) -> None:
    """The files of this topic did not exist when the daemon started."""
    write_file(project, "1.jsonl", 0, table="u")

    def step(stop: threading.Event) -> None:
        await_registered(project, "u")
        write_file(project, "3.jsonl", 3)
        await_registered(project, "t")
        stop.set()

    run_daemon(project, step)
    write_file(project, "2.jsonl", 0)
    assert "Lane lake.t lacks the records at offsets 0 to 2 of cdc.public.t[0]" in run_until_caught_up(ExitCode.DATA_LOSS)
