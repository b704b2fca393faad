"""The table of users that DMS writes, file by file, into both kinds of targets: as events tell of them, and as found."""

from __future__ import annotations

import json
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from servers.object_store import BUCKET, ObjectStore
from support.small_spark import SMALL
from support.stored_files import StoredFiles

from replicator.pipelines.program_run import run_pipeline
from replicator.pipelines.s3_events import handle
from replicator.wiring.configuration import read_config

pytestmark = pytest.mark.postgres

USERS = "public/users"
CONFIG = """\
pipeline: users
sources:
  bucket:
    format: dms_csv
    transport: files
    path: {path}
    look_every: 200 milliseconds
    storage: {storage}
  elsewhere: {{format: dms_csv, transport: files, path: s3://no-such-bucket/x, storage: {storage}}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  target: {{kind: postgres, dsn: "{dsn}"}}
dead_letters: {{path: ./dead_letters}}
tables:
  - match: public.users
    source: bucket
    keys: [user_id]
    schema: {{user_id: int64, name: string, city: string, last_login: date32}}
    to: [{{sink: lake}}, {{sink: target}}]
  - {{match: public.others, source: elsewhere, keys: [id], schema: {{id: int64}}, to: [{{sink: lake}}]}}
http: {{address: "127.0.0.1:0"}}
"""
LOAD = """\
0,Herman Zimmerman,Oklahoma city,2020-10-10
1,Lisa Ray,Columbus,2021-04-01
2,Terrell Reeves,Jacksonville,2017-01-01
3,Steve Goodwin,Charlotte,2021-09-19
4,Leah Tran,Detroit,2021-04-05
5,Wilbert Holmes,Washington,2021-07-23
6,Mindy George,Los Angeles,2021-10-01
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
FIRST, CDC, LAST = (f"{USERS}/{n}.csv" for n in ("LOAD00000001", "2021/10/17/20211017-194324349", "20211017-194400000"))
Rows = dict[int, tuple[str, str, date]]


def rows_of(*texts: str) -> Rows:
    """What the rows of these files make, one after the other."""
    out: Rows = {}
    for line in "".join(texts).splitlines():
        number, name, city, day = line.removeprefix("U,").removeprefix("I,").split(",")
        out[int(number)] = (name, city, date.fromisoformat(day))
    return out


RESULT = rows_of(LOAD, CHANGES, LATER)


class Users:
    """A project that replicates them."""

    def __init__(self, folder: Path, store: ObjectStore, dsn: str) -> None:
        self.folder, self.files = folder, StoredFiles(store)
        parts = dict(part.split("=") for part in dsn.split())
        self.dsn = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
        self.config = folder / "config" / "replicator.yaml"
        self.config.parent.mkdir()
        storage = json.dumps(store.storage)
        self.config.write_text(CONFIG.format(path=self.files.options["path"], storage=storage, dsn=self.dsn))

    def put(self, **texts: str) -> None:
        for name, text in texts.items():
            self.files.put({"first": FIRST, "cdc": CDC, "last": LAST}[name], text)

    def tell(self, *names: str) -> dict[str, Any]:
        """What `handle` answers to a notification of these files."""
        records = [
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": BUCKET}, "object": {"key": f"{self.files.folder}/{name}"}},
            }
            for name in names
        ]
        return handle({"Records": records}, config=self.config)

    def rows(self) -> Rows:
        """Which both targets have."""
        found = DeltaTable(str(self.folder / "lake" / "users")).to_pyarrow_table().to_pylist()
        lake = {row["user_id"]: (row["name"], row["city"], row["last_login"]) for row in found}
        with psycopg.connect(self.dsn) as connection:
            target = {row[0]: row[1:] for row in connection.execute("SELECT user_id, name, city, last_login FROM users")}
        assert lake == target
        return lake


@pytest.fixture
def users(tmp_path: Path, s3: ObjectStore, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Users:
    monkeypatch.chdir(tmp_path)
    return Users(tmp_path, s3, postgres_dsn)


def applied(answer: dict[str, Any]) -> set[int]:
    """Changes that lanes applied."""
    return {lane["counts"]["applied"] for lane in answer["report"]["lanes"]}


def test_bucket_events_apply_their_files(users: Users) -> None:
    """In any order, twice, and before older files are read. Files later in the bucket wait for their own event."""
    users.put(first=LOAD, cdc=CHANGES, last=LATER)
    answer = users.tell(CDC)
    assert answer["files"] == [f"s3://{BUCKET}/{users.files.folder}/{CDC}"] and answer["passed_over"] == []
    # The full load is applied before, what comes later is not.
    assert users.rows() == rows_of(LOAD, CHANGES)
    assert applied(users.tell(FIRST)) == {0} and applied(users.tell(CDC)) == {0}
    assert users.rows() == rows_of(LOAD, CHANGES)
    assert applied(users.tell(LAST)) == {2}
    assert users.rows() == RESULT and len(RESULT) == 13
    assert applied(users.tell(CDC, LAST, FIRST)) == {0}
    assert users.rows() == RESULT


def test_events_of_other_buckets_are_skipped(users: Users) -> None:
    other = handle(
        {"source": "aws.s3", "detail-type": "Object Created", "detail": {"bucket": {"name": "x"}, "object": {"key": "y"}}},
        config=users.config,
    )
    assert other == {"files": [], "passed_over": ["s3://x/y"], "report": None}


def test_files_that_arrive_during_the_run_are_applied(users: Users) -> None:
    users.put(first=LOAD)
    stop, ended = threading.Event(), []
    running = threading.Thread(
        target=lambda: ended.append(
            run_pipeline(read_config(users.config, None, ["tables.1.source=bucket"]), once=False, stop=stop, served=False)
        )
    )
    running.start()
    try:
        until(lambda: users.rows() == rows_of(LOAD))
        users.put(cdc=CHANGES)
        until(lambda: users.rows() == rows_of(LOAD, CHANGES))
        users.put(last=LATER)
        until(lambda: users.rows() == RESULT)
    finally:
        stop.set()
        running.join(60)
    assert ended and {lane["counts"]["rejected"] for lane in ended[0]["lanes"]} == {0}


@pytest.mark.parametrize(
    "engine", ["local", pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_batch_mode_applies_accumulated_files_in_one_merge(users: Users, engine: str) -> None:
    """Full load and changes are one commit. Files that arrive later are the next commit."""

    def once() -> set[int]:
        said = ["tables.1.source=bucket", "sources.bucket.mode=batch", "limits.batch_bytes=1KiB"]
        said += [f"engine={engine}", f"spark={json.dumps(SMALL)}"] if engine == "spark" else []
        report = run_pipeline(read_config(users.config, None, said), once=True, stop=None, served=False)
        return {lane["counts"]["applied"] for lane in report["lanes"]}

    users.put(first=LOAD, cdc=CHANGES)
    assert once() == {12}
    assert users.rows() == rows_of(LOAD, CHANGES)
    users.put(last=LATER)
    assert once() == {2} and users.rows() == RESULT
    history = DeltaTable(str(users.folder / "lake" / "users")).history()
    made = [entry["operation"] for entry in history if not entry["operation"].startswith("CREATE")]
    assert made == ["MERGE", "MERGE" if engine == "spark" else "WRITE"]


def until(holds: Any, seconds: float = 60.0) -> None:
    last = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except Exception:
            if time.monotonic() > last:
                raise
        assert time.monotonic() < last
        time.sleep(0.2)


def test_parquet_and_transaction_files(users: Users, tmp_path: Path) -> None:
    """The same table in Parquet, and as changes in files of transactions."""
    table = [line.split(",") for line in LOAD.splitlines()]
    columns = {"user_id": pa.array([int(r[0]) for r in table]), "name": [r[1] for r in table], "city": [r[2] for r in table]}
    days = pa.array([date.fromisoformat(r[3]) for r in table])
    pq.write_table(pa.table({**columns, "last_login": days}), tmp_path / "p.parquet")
    users.files.put(f"{USERS}/LOAD00000001.parquet", (tmp_path / "p.parquet").read_bytes())
    text = users.config.read_text().replace("dms_csv", "dms_parquet", 1)
    text = text.replace("    schema: {user_id: int64, name: string, city: string, last_login: date32}\n", "", 1)
    users.config.write_text(text)
    assert applied(users.tell(f"{USERS}/LOAD00000001.parquet")) == {10}
    assert users.rows() == rows_of(LOAD)


def test_changes_in_transaction_files(users: Users) -> None:
    users.put(first=LOAD)
    for number, texts in enumerate((CHANGES, LATER)):
        rows = "".join(f"{line[:2]}users,public,{line[2:]}\n" for line in texts.splitlines())
        users.files.put(f"changes/CDC_TXN-2021101719440{number}000.csv", f"I,others,public,1\n{rows}")
    # What became of number 6 is one row; the others of the transaction are of a table that nobody asks for.
    assert applied(users.tell("changes/CDC_TXN-20211017194400000.csv")) == {12}
    assert users.rows() == rows_of(LOAD, CHANGES)
    users.tell("changes/CDC_TXN-20211017194401000.csv")
    assert users.rows() == RESULT
