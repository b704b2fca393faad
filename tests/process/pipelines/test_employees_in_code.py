"""The documented pipeline, run as in the documentation, and the ways in which a run ends."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from paths import PROJECT
from support.employees import FEED, STAYS, VERSIONS, append_employees
from support.small_spark import SMALL
from support.staff_in_code import FLOW, PARTS

from replicator import pipelines as dp
from replicator.domain.errors import ExitCode, Fenced
from replicator.pipelines.program_run import _stop_on_interrupt

PAGE = PROJECT / "docs" / "how-to" / "write-a-pipeline-in-python.md"
PROGRAM, _, AS_AUTO_CDC, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
UK = [{"id": 3, "name": "Mikhail"}, {"id": 4, "name": "Gary"}]


def read_rows(folder: Path, table: str, *columns: str) -> list[tuple]:
    found = DeltaTable(str(folder / "lake" / table)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


ON_SPARK = pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)])


@pytest.mark.parametrize("engine", ["local", ON_SPARK])
def test_documented_program(tmp_path, engine):
    more = f'"staff", engine="spark", spark={json.dumps(SMALL)},' if engine == "spark" else '"staff",'
    assert PROGRAM.count('"staff",') == 1
    (tmp_path / "staff.py").write_text(PROGRAM.replace('"staff",', more))
    for feed in (FEED[:5], FEED[5:]) if engine == "local" else (FEED,):
        append_employees(tmp_path, feed)
        done = subprocess.run(
            [sys.executable, "staff.py"], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert engine == "spark" or done.stderr == ""
    assert sorted(ast.literal_eval(done.stdout), key=lambda row: row["id"]) == UK
    assert read_rows(tmp_path, "employees", "id", "name", "role") == STAYS
    history = read_rows(tmp_path, "employees_historical", "id", "name", "role", "_cdc_seq_1", "_cdc_end_seq_1")
    assert history == VERSIONS


USERS = [
    (124, "Raul", "Oaxaca", "INSERT", 1),
    (123, "Isabel", "Monterrey", "INSERT", 1),
    (125, "Mercedes", "Tijuana", "INSERT", 2),
    (126, "Lily", "Cancun", "INSERT", 2),
    (None, None, None, "TRUNCATE", 3),
    (123, None, None, "DELETE", 6),
    (125, "Mercedes", "Guadalajara", "UPDATE", 6),
    (125, "Mercedes", "Mexicali", "UPDATE", 5),
    (123, "Isabel", "Chihuahua", "UPDATE", 5),
]
"""The feed of AUTO CDC's documentation, as it has it."""


def test_documented_auto_cdc_program_writes_the_documented_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = zip(*USERS, strict=True)
    names = ("userId", "name", "city", "operation", "sequenceNum")
    table = pa.table({name: pa.array(values) for name, values in zip(names, columns, strict=True)})
    write_deltalake(str(tmp_path / "feed" / "users"), table)
    exec(compile(AS_AUTO_CDC, "users.py", "exec"), {"__name__": "users"})
    assert read_rows(tmp_path, "target", "userId", "name", "city") == [(125, "Mercedes", "Guadalajara")]


def test_run_returns_its_report_and_the_next_run_resumes(staff, tmp_path):
    staff.create_auto_cdc_flow(**FLOW, sequence_by="sequenceNum", apply_as_deletes="operation = 'DELETE'")
    for feed in (FEED, [(7, "Kim", "cook", "DE", "INSERT", 9)]):
        append_employees(tmp_path, feed)
        before = signal.getsignal(signal.SIGINT)
        (lane,) = staff.run(until_caught_up=True)["lanes"]
        assert signal.getsignal(signal.SIGINT) is before
        assert (lane["id"], sum(lane["counts"].values())) == ("lake.employees", len(feed))
    assert staff.load_table("lake.employees", where="id = 7")["name"].to_pylist() == ["Kim"]
    assert read_rows(tmp_path, "employees", "id", "name", "role") == [*STAYS, (7, "Kim", "cook")]


def test_suspended_lane_is_an_error_with_the_line_of_its_flow(staff, tmp_path):
    append_employees(tmp_path, FEED)
    line = sys._getframe().f_lineno + 1
    staff.create_auto_cdc_flow(**FLOW, sequence_by="no_such_column")
    with pytest.raises(dp.RunFailed, match="'sequence_by' names column 'no_such_column'") as caught:
        staff.run(until_caught_up=True)
    assert caught.value.exit_code is ExitCode.CONFIG
    assert f"test_employees_in_code.py:{line}" in caught.value.next_step
    assert [lane["status"] for lane in caught.value.report["lanes"]] == ["suspended"]


def test_flow_without_matching_table_is_a_warning(staff, tmp_path):
    append_employees(tmp_path, FEED)
    staff.create_auto_cdc_flow(**FLOW)
    staff.create_auto_cdc_flow("lake.others", "staff.others", ["id"])
    with pytest.warns(UserWarning, match="no table matched others") as caught:
        staff.run(until_caught_up=True)
    assert caught[0].filename == __file__


def test_stop_ends_the_run_and_a_second_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    append_employees(tmp_path, FEED)
    staff = dp.Pipeline("staff", **PARTS, http={"address": "127.0.0.1:18097"})
    staff.create_auto_cdc_flow(**FLOW, sequence_by="sequenceNum")
    stop, reports = threading.Event(), []
    running = threading.Thread(target=lambda: reports.append(staff.run(stop=stop)))
    running.start()
    try:
        await_condition((tmp_path / "lake" / "employees").exists)
        with pytest.raises(Fenced):
            staff.run(until_caught_up=True)
        with urlopen("http://127.0.0.1:18097/status.json") as answer:
            assert json.load(answer)["pipeline"] == "staff"
    finally:
        stop.set()
        running.join(30)
    assert [lane["id"] for lane in reports[0]["lanes"]] == ["lake.employees"]
    staff.run(until_caught_up=True)


def test_interrupt_stops_the_run_and_restores_the_handler(staff, tmp_path):
    append_employees(tmp_path, FEED)
    staff.create_auto_cdc_flow(**FLOW, sequence_by="sequenceNum")

    def interrupt() -> None:
        await_condition((tmp_path / "lake" / "employees").exists)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    report = staff.run()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert sum(report["lanes"][0]["counts"].values()) == len(FEED)


def test_second_interrupt_raises_keyboard_interrupt():
    stop, before = threading.Event(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), _stop_on_interrupt(stop):
            signal.raise_signal(signal.SIGINT)
            assert stop.is_set()
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def await_condition(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
