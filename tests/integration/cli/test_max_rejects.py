"""Too many rejects, or a dead-letter store that is unavailable, end the program."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import which

import pytest
from support.cli_program import run_program
from support.dead_letter_project import (
    POISON,
    append_records,
    make_row_record,
    query_rows,
    run_command,
    run_until_caught_up,
    write_config,
)

BOUND = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
"""Makes of root one for whom folders can be read-only."""


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.long)])
def test_too_many_rejects_end_the_run_with_code_6(tmp_path: Path, engine: str) -> None:
    """The run ends at one reject more than `max_rejects`. Rejected records are stored, and no position passes a record
    that was not applied."""
    write_config(tmp_path, more="max_rejects: 2")
    append_records(
        tmp_path,
        make_row_record(0, 1, 10),
        make_row_record(1, 2, POISON),
        make_row_record(2, 3, POISON),
        make_row_record(3, 4, 40),
    )
    run_until_caught_up(tmp_path, 0, "--engine", engine)
    assert query_rows(tmp_path) == [(1, 10, 0), (4, 40, 3)]
    append_records(tmp_path, *(make_row_record(n, n, POISON) for n in range(4, 7)), make_row_record(7, 7, 70))
    said = run_until_caught_up(tmp_path, 6, "--engine", engine)
    assert said["summary"] == "Rejected: 3 records. `max_rejects` is 2."
    assert query_rows(tmp_path) == [(1, 10, 0), (4, 40, 3)]
    assert len(run_command(tmp_path, "dlq", "list")["result"]) == 5
    run_until_caught_up(tmp_path, 0, "--engine", engine, "--set", "max_rejects=3")
    assert query_rows(tmp_path) == [(1, 10, 0), (4, 40, 3), (7, 70, 7)]


def test_first_reject_ends_the_run_if_max_rejects_is_0(tmp_path: Path) -> None:
    write_config(tmp_path, more="max_rejects: 0")
    append_records(tmp_path, make_row_record(0, 1, 10))
    run_until_caught_up(tmp_path)
    append_records(tmp_path, make_row_record(1, 2, POISON))
    said = run_program(tmp_path, "run", "--until-caught-up", "-q")
    assert said.returncode == 6
    assert "error: Rejected: 1 record. `max_rejects` is 0." in said.stderr
    assert "See them with `replicator dlq list`. Raise max_rejects to continue." in said.stderr


@pytest.mark.skipif(os.geteuid() == 0 and which("setpriv") is None, reason="nothing is read-only for root")
def test_read_only_dead_letter_folder_ends_the_run(tmp_path: Path) -> None:
    """It ends before any position passes the record. When the folder is writable again, the next run resumes there."""
    write_config(tmp_path)
    append_records(tmp_path, make_row_record(0, 1, 10), make_row_record(1, 2, POISON), make_row_record(2, 3, 30))
    letters = tmp_path / "letters"
    letters.mkdir()
    letters.chmod(0o500)
    try:
        said = run_until_caught_up(tmp_path, 3, before=BOUND if os.geteuid() == 0 else ())
    finally:
        letters.chmod(0o700)
    assert "cannot be written to the dead-letter store" in said["summary"]
    assert not (tmp_path / "lake" / "items").exists()
    run_until_caught_up(tmp_path)
    assert query_rows(tmp_path) == [(1, 10, 0), (3, 30, 2)]
    (letter,) = run_command(tmp_path, "dlq", "list")["result"]
    assert (letter["event_id"], letter["source"], letter["key"]) == ("items-0-1", "feed", "2")


@pytest.mark.postgres
def test_stopped_dead_letter_server_ends_the_run(tmp_path: Path, own_postgres_server) -> None:
    """The run waits for `patience`, and no position passes the record. When the server is back, every row is there
    once."""
    write_config(tmp_path, letters=f'{{dsn: "{own_postgres_server.url()}", schema: kept, patience: 2 seconds}}')
    append_records(tmp_path, make_row_record(0, 1, 10), make_row_record(1, 2, POISON))
    run_until_caught_up(tmp_path)
    append_records(tmp_path, make_row_record(2, 3, POISON), make_row_record(3, 4, 40))
    own_postgres_server.run("pg_ctl", "stop", "-w", "-m", "fast")
    said = run_until_caught_up(tmp_path, 1)
    assert "cannot be written to the dead-letter store" in said["summary"]
    assert query_rows(tmp_path) == [(1, 10, 0)]
    own_postgres_server.start_again()
    run_until_caught_up(tmp_path)
    assert query_rows(tmp_path) == [(1, 10, 0), (4, 40, 3)]
    letters = run_command(tmp_path, "dlq", "list")["result"]
    assert {letter["event_id"]: letter["attempts"] for letter in letters} == {"items-0-1": 1, "items-0-2": 1}
