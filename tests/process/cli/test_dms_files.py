"""The shipped example of DMS files, with files that arrive during the run."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from paths import PROJECT
from support.cli_program import run_program
from support.dms_folder import set_old_time
from support.next_layer import LONG_ON_SPARK, run_until_caught_up

from replicator.pipelines.program_run import run_pipeline as run_inside
from replicator.wiring.configuration import read_config

pytestmark = pytest.mark.slow
"""The program starts several times in each."""

EXAMPLE = PROJECT / "config" / "examples" / "dms-files.yaml"
LOAD = """\
0,Herman Zimmerman,Oklahoma city,2020-10-10
1,Lisa Ray,Columbus,2021-04-01
2,Terrell Reeves,Jacksonville,2017-01-01
3,Steve Goodwin,Charlotte,2021-09-19
4,Leah Tran,Detroit,2021-04-05
5,Wilbert Holmes,Washington,2021-07-23
6,Mindy George,Los Angeles,2021-10-01
"""
MORE = """\
7,Rosa Huff,Phoenix,2021-10-17
8,Lebron James,Denver,2021-10-17
9,Darla Hayes,Nashville,2021-10-15
"""
CHANGES = """\
U,6,Mindy George,Los Angeles,2021-10-15
I,133,Bob Ding,New York,2021-10-17
I,134,Ross Green,Seattle,2021-10-17
"""
LATER = """\
I,135,Monica Bing,Portland,2021-10-17
U,8,Kevin Durant,Denver,2021-10-14
"""
RESULT = {
    0: ("Herman Zimmerman", "Oklahoma city", date(2020, 10, 10)),
    1: ("Lisa Ray", "Columbus", date(2021, 4, 1)),
    2: ("Terrell Reeves", "Jacksonville", date(2017, 1, 1)),
    3: ("Steve Goodwin", "Charlotte", date(2021, 9, 19)),
    4: ("Leah Tran", "Detroit", date(2021, 4, 5)),
    5: ("Wilbert Holmes", "Washington", date(2021, 7, 23)),
    6: ("Mindy George", "Los Angeles", date(2021, 10, 15)),
    7: ("Rosa Huff", "Phoenix", date(2021, 10, 17)),
    8: ("Kevin Durant", "Denver", date(2021, 10, 14)),
    9: ("Darla Hayes", "Nashville", date(2021, 10, 15)),
    133: ("Bob Ding", "New York", date(2021, 10, 17)),
    134: ("Ross Green", "Seattle", date(2021, 10, 17)),
    135: ("Monica Bing", "Portland", date(2021, 10, 17)),
}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """The folder of the table. The project around it uses the example's configuration."""
    (tmp_path / "config").mkdir()
    shutil.copy(EXAMPLE, tmp_path / "config" / "replicator.yaml")
    folder = tmp_path / "dms" / "public" / "users"
    folder.mkdir(parents=True)
    write_closed_file(folder / "LOAD00000001.csv", LOAD)
    return folder


def write_closed_file(file: Path, text: str | bytes) -> None:
    """Writes a file with an old time, so that the source takes it as complete."""
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    set_old_time(file)


def read_rows(project: Path) -> dict[int, tuple[str, str, date]]:
    found = DeltaTable(str(project / "deltalake" / "dms" / "users")).to_pyarrow_table().to_pylist()
    return {row["user_id"]: (row["name"], row["city"], row["last_login"]) for row in found}


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_full_load_then_changes(users: Path, tmp_path: Path, engine: str) -> None:
    """Local and Spark runs alternate."""
    run_until_caught_up(tmp_path, engine)
    assert len(read_rows(tmp_path)) == 7
    write_closed_file(users / "LOAD00000002.csv.gz", gzip.compress(MORE.encode()))
    (users / "2021" / "10").mkdir(parents=True)
    write_closed_file(users / "2021" / "10" / "20211017-194324349.csv", CHANGES)
    run_until_caught_up(tmp_path, "local")
    write_closed_file(users / "20211017-194400000.csv", LATER)
    said = run_until_caught_up(tmp_path, engine)
    assert read_rows(tmp_path) == RESULT
    (lane,) = said["result"]["lanes"]
    assert lane["counts"]["applied"] == 2
    again = run_until_caught_up(tmp_path, engine)
    assert again["result"]["lanes"][0]["counts"]["applied"] == 0


def test_files_that_arrive_during_the_run_are_applied(users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is found on arrival, long before the next scan of the folder."""
    monkeypatch.chdir(tmp_path)
    loaded = read_config(Path("config/replicator.yaml"), None, ["sources.bucket.look_every=1 hours"])
    stop = threading.Event()
    program = threading.Thread(target=lambda: run_inside(loaded, once=False, stop=stop, served=False))
    program.start()
    try:
        wait_until(lambda: len(read_rows(tmp_path)) == 7)
        add_file(users / "LOAD00000002.csv.gz", gzip.compress(MORE.encode()))
        wait_until(lambda: len(read_rows(tmp_path)) == 10)
        add_file(users / "2021" / "10" / "20211017-194324349.csv", CHANGES.encode())
        wait_until(lambda: len(read_rows(tmp_path)) == 12)
        add_file(users / "20211017-194400000.csv", LATER.encode())
        wait_until(lambda: read_rows(tmp_path) == RESULT)
        assert len(RESULT) == 13
    finally:
        stop.set()
        program.join(60)


def add_file(file: Path, content: bytes) -> None:
    """Adds a whole file under its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    write_closed_file(partial, content)
    partial.replace(file)


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except TableNotFoundError:
            pass
        assert time.monotonic() < until
        time.sleep(0.1)


def test_bad_rows_are_dead_letters(users: Path, tmp_path: Path) -> None:
    bad = b"U,6,Mindy\nX,1,a,b,2021-01-01\nU,2,a,b,yesterday\nU,3,\xff,b,2021-01-01\nU,4,a,b,2021-01-01,more\n"
    write_closed_file(users / "20211017-194324349.csv", bad + CHANGES.encode())
    said = run_until_caught_up(tmp_path, "local")
    (lane,) = said["result"]["lanes"]
    # Seven of the full load and two new ones; what became of number 6 is one row.
    assert lane["counts"]["applied"] == 9 and lane["counts"]["folded"] == 1 and read_rows(tmp_path)[6] == RESULT[6]
    listed = run_program(tmp_path, "dlq", "list", "--json")
    sentences = sorted(letter["sentence"] for letter in json.loads(listed.stdout)["result"])
    assert len(sentences) == 5, sentences
    # Each says where its row stands.
    stands = sorted(sentence.rpartition(" (")[2] for sentence in sentences)
    assert stands == [f"row {n} of 20211017-194324349)" for n in range(1, 6)]
    assert any("last_login" in sentence for sentence in sentences) and not any("yesterday" in s for s in sentences)


def test_files_with_headers_and_unconfigured_tables(users: Path, tmp_path: Path) -> None:
    others = users.parent / "others"
    others.mkdir()
    write_closed_file(others / "LOAD00000001.csv", "a,b\n1,2\n")
    write_closed_file(
        users / "LOAD00000001.csv", "city,user_id,name,last_login\nNULL,1,NULL,2021-04-01\n'a,\nb',2,'NULL',NULL\n"
    )
    write_closed_file(users / "20211017-194324349.csv", "Op,user_id,name,city,last_login\nU,1,?,Rome,2021-04-02\n")
    csv = json.dumps({"header": True, "quote": "'", "null_value": "NULL", "unsent_value": "?"})
    said = run_until_caught_up(tmp_path, "local", "--set", f"sources.bucket.csv={csv}")
    assert read_rows(tmp_path) == {1: (None, "Rome", date(2021, 4, 2)), 2: ("NULL", "a,\nb", None)}
    (lane,) = said["result"]["lanes"]
    assert lane["counts"]["rejected"] == 0


def test_file_that_dms_did_not_write_ends_the_run(users: Path, tmp_path: Path) -> None:
    write_closed_file(users / "export.csv", "1,a\n")
    said = json.dumps(run_until_caught_up(tmp_path, "local", code=2))
    assert "export.csv is no file of AWS DMS" in said
