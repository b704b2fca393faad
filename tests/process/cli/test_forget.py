"""`replicator forget`: a person's rows are removed from all stores, and later records of them are dropped."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import chdir
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from support.cli_program import parse_answer, run_program
from support.debezium_events import encode_with_schema, make_column, make_envelope_schema, make_payload

from replicator.application.delivery.bulk_load import BulkLoader
from replicator.application.operations import table_swap
from replicator.application.operations.checkpoint import AS_OF_TARGET
from replicator.application.operations.rebuild import SPILL_FOLDER
from replicator.application.quarantine.erasure_filter import ErasureList
from replicator.application.state_folder import InstanceLock
from replicator.cli import main
from replicator.cli.session import CommandSession
from replicator.domain.erasures import Erasure

PLANTED, OTHERS = "Ada-Planted", ("Bob-Stays", "Cyd-Stays")
TOPIC = "cdc.public.customers"
COLUMNS = (make_column("email", "string", optional=False), make_column("name", "string"), make_column("age", "int32"))
ADA, OLD, BOB, CYD = "ada@planted.org", "old@planted.org", "bob@example.org", "cyd@example.org"
SECRETS = (PLANTED, ADA)
CONFIG = """\
pipeline: shop
sources:
  recorded: {{format: debezium_json, transport: archive, path: ./archive}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./lake/cdc_events}}{database}
dead_letters: {letters}
tables:
  - match: public.customers
    source: recorded
    to:{to}
http: {{address: "127.0.0.1:0"}}
"""
LITTLE = """
      - {sink: raw}
      - {sink: lake}
      - {sink: lake, into: history, policy: scd2}"""
EVERYTHING = f"""{LITTLE}
      - {{sink: lake, into: changes, policy: append}}
      - {{sink: lake, into: softly, deletes: soft, columns: {{email: {{rename: mail}}}}}}
      - {{sink: lake, into: hashed, columns: {{email: {{mask: hmac, key: 0123456789abcdef}}}}}}"""
DATABASE = """
  target: {{kind: postgres, dsn: "{dsn}", schema: mirror}}
  logged: {{kind: event_log, dsn: "{dsn}"}}"""
IN_DATABASE = """
      - {sink: logged}
      - {sink: target}
      - {sink: target, into: history, policy: scd2}
      - {sink: target, into: changes, policy: append}"""


def make_customer(email: str, name: str, age: Any = 30) -> dict[str, Any]:
    return {"email": email, "name": name, "age": age}


def make_key(email: str) -> str:
    schema = {"type": "struct", "fields": [COLUMNS[0]], "optional": False, "name": f"{TOPIC}.Key"}
    return json.dumps({"schema": schema, "payload": {"email": email}})


def make_event(at: int, op: str, after: Any, before: Any = None) -> str:
    return encode_with_schema(
        make_envelope_schema(COLUMNS, "customers"), make_payload(op, after, before, at, source={"table": "customers"})
    ).decode()


def make_changes(start: int) -> list[tuple[str, str | None]]:
    """Records of three people: rows, an update with both images, a deleted and inserted row, poison, a null record."""
    at, (ada, bob, cyd) = (
        1_000 * (start + 1),
        (make_customer(ADA, PLANTED), make_customer(BOB, OTHERS[0]), make_customer(CYD, OTHERS[1])),
    )
    return [
        (make_key(BOB), make_event(at, "c", bob)),
        (make_key(ADA), make_event(at + 1, "c", ada)),
        (make_key(ADA), make_event(at + 2, "u", ada | {"age": 31}, ada)),
        (make_key(CYD), make_event(at + 3, "c", cyd)),
        (make_key(ADA), make_event(at + 4, "u", ada | {"age": f"of {PLANTED}"}, ada)),
        (make_key(ADA), f"no event, but of {PLANTED}"),
        (make_key(BOB), make_event(at + 5, "u", bob | {"age": "unknown"}, bob)),
        (make_key(ADA), make_event(at + 6, "d", None, ada)),
        (make_key(ADA), None),
        (make_key(ADA), make_event(at + 7, "c", ada | {"age": 33})),
    ]


def change_key_and_back(at: int) -> list[tuple[str, str | None]]:
    """A row whose key changes to Ada's and back."""
    return [
        (make_key(OLD), make_event(at, "c", make_customer(OLD, PLANTED))),
        (make_key(ADA), make_event(at + 1, "u", make_customer(ADA, PLANTED), make_customer(OLD, PLANTED))),
        (make_key(OLD), make_event(at + 2, "u", make_customer(OLD, PLANTED), make_customer(ADA, PLANTED))),
    ]


def append_records(folder: Path, records: list[tuple[str, str | None]]) -> None:
    path = folder / "archive" / "customers.jsonl"
    start = len(path.read_text().splitlines()) if path.exists() else 0
    place = {"topic": TOPIC, "partition": 0, "timestamp": None, "headers": None}
    with path.open("a") as more:
        for offset, (message, value) in enumerate(records, start):
            more.write(json.dumps(place | {"offset": offset, "key": message, "value": value}) + "\n")


def run_command(folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """Runs a command in this process and returns its object. A start of the program takes longer than most commands."""
    with chdir(folder):
        done = CliRunner().invoke(main, [*words, "--json", "-q"])
    assert done.exit_code == code, done.output + repr(done.exception)
    found: dict[str, Any] = parse_answer(done)
    return found


def run_until_caught_up(folder: Path, *words: str) -> None:
    run_command(folder, "run", "--until-caught-up", *words)


def make_project(folder: Path, letters: str = "{path: ./letters}", dsn: str = "", to: str = EVERYTHING) -> Path:
    (folder / "config").mkdir()
    (folder / "archive").mkdir()
    database = DATABASE.format(dsn=dsn) if dsn else ""
    text = CONFIG.format(letters=letters, database=database, to=to + (IN_DATABASE if dsn else ""))
    (folder / "config" / "replicator.yaml").write_text(text)
    append_records(folder, make_changes(0))
    run_until_caught_up(folder)
    return folder


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return make_project(tmp_path, to=LITTLE)


def find_secret(folder: Path) -> list[str]:
    """Stored files that contain a secret. Parquet files are decoded; the archive and the config are left out."""
    found = []
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).parts
        if path.is_file() and inside[0] not in ("archive", "config"):
            text = repr(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_bytes().decode("latin1")
            found += [str(path.relative_to(folder))] if any(secret in text for secret in SECRETS) else []
    return found


def read_lake(folder: Path) -> dict[str, str]:
    """The current rows of every Delta table, as text."""
    lake = {path.parent.relative_to(folder) for path in folder.rglob("_delta_log")}
    return {str(name): repr(DeltaTable(str(folder / name)).to_pyarrow_table().to_pylist()) for name in lake}


def read_database(dsn: str) -> dict[str, str]:
    """The rows of every table of the database."""
    query = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT LIKE 'pg\\_%' "
    with psycopg.connect(dsn) as connection:
        tables = [name for (name,) in connection.execute(f"{query} AND schemaname <> 'information_schema'")]
        found = {}
        for name in tables:
            rows = connection.execute(f"SELECT to_jsonb(t)::text FROM {name} AS t").fetchall()
            more = connection.execute(f"SELECT t::text FROM {name} AS t").fetchall()
            found[name] = bytes(repr(rows + more), "utf-8").decode() + _to_text(rows)
    return found


def _to_text(rows: list[Any]) -> str:
    """The values as text. Bytes are hexadecimal digits in the rows."""
    texts = []
    for (row,) in rows:
        texts += [bytes.fromhex(v[2:]).decode("latin1") for v in json.loads(row).values() if str(v).startswith("\\x")]
    return repr(texts)


def list_tables_with_secrets(places: dict[str, str]) -> list[str]:
    return [name for name, text in places.items() if any(secret in text for secret in SECRETS)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_erased_person_is_removed_from_every_sink_and_stays_away(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In all sinks: stored rows, and rows that a stream from its start, a replay of the log, dead letters or repeated
    records would store."""
    request.getfixturevalue("postgres_dsn")
    server = request.getfixturevalue("postgres_server")
    server.database(name := f"forgetting_{random.randrange(10**9)}")
    dsn = server.url(name)
    shop = make_project(tmp_path, f'{{dsn: "{dsn}"}}', dsn)
    run_command(shop, "replay", "public.customers", "--lane", "lake.customers", "--into", "again")
    assert len(list_tables_with_secrets(read_lake(shop))) == 7 and len(list_tables_with_secrets(read_database(dsn))) >= 5
    said = run_command(shop, "forget", "public.customers", ADA, "--yes")["result"]
    assert said["removed"] == {
        "raw": 7, "logged": 7, "dead letters": 2, "lake.customers": 1, "lake.history": 3, "lake.changes": 4,
        "lake.softly": 1, "lake.hashed": 1, "lake.again": 1, "target.customers": 1, "target.history": 3, "target.changes": 4,
    }  # fmt: skip
    assert not list_tables_with_secrets(read_lake(shop)) and not list_tables_with_secrets(read_database(dsn))
    assert all(OTHERS[1] in text for name, text in read_lake(shop).items() if "_replicator" not in name)
    letters = run_command(shop, "dlq", "list")["result"]
    assert [letter["offset"] for letter in letters] == [6]
    assert said["versions"] and find_secret(shop), "older versions are told of"
    run_command(shop, "forget", "public.customers", ADA, "--yes", "--vacuum")
    assert not find_secret(shop)

    append_records(shop, make_changes(1))
    run_until_caught_up(shop)
    for lane in ("lake.customers", "target.history"):
        run_command(shop, "lanes", "resync", lane, "--yes")
    run_until_caught_up(shop)
    run_command(shop, "replay", "public.customers", "--lane", "lake.customers", "--into", "later", "--policy", "scd2")
    run_command(shop, "dlq", "replay", code=1)
    assert (
        not list_tables_with_secrets(read_lake(shop))
        and not list_tables_with_secrets(read_database(dsn))
        and not find_secret(shop)
    )
    assert OTHERS[0] in read_lake(shop)["lake/later"] and OTHERS[0] in read_database(dsn)["mirror.history"]
    shutil.rmtree(shop / "lake")
    run_until_caught_up(shop)
    assert not find_secret(shop) and OTHERS[0] in read_lake(shop)["lake/customers"]


def test_row_is_erased(shop: Path) -> None:
    """Its records are removed too, also rejected ones, and later records are not stored. Other rows stay."""
    said = run_command(shop, "forget", "public.customers", ADA, "--yes", "--vacuum")["result"]
    assert said["removed"] == {"raw": 7, "dead letters": 2, "lake.customers": 1, "lake.history": 3}
    assert not find_secret(shop) and not said["versions"] and not said["linked"]
    append_records(shop, make_changes(1))
    run_until_caught_up(shop)
    found = read_lake(shop)
    assert not find_secret(shop) and len([name for name, text in found.items() if OTHERS[0] in text]) >= 4
    log = DeltaTable(str(shop / "lake" / "cdc_events")).to_pyarrow_table().to_pylist()
    assert sorted(row["offset"] for row in log) == list(range(20))
    assert sum(row["key"] is None for row in log) == 14 == sum((row["error"] or "")[:9] == "FORGOTTEN" for row in log)
    again = run_command(shop, "forget", "public.customers", ADA, "--yes")["result"]
    assert set(again["removed"].values()) == {0}
    (marker,) = json.loads((shop / "state" / "shop" / "erasures.json").read_text())["erasures"]
    assert marker["removed"]["raw"] == 7 and marker["at"] and marker["by"]
    assert (shop / "state" / "shop" / "erasures.key").stat().st_mode & 0o077 == 0


def test_projections_of_an_erased_row_are_erased(shop: Path) -> None:
    """Projections over a target, over another projection, and over the event log; also groups that identify the person."""
    config = shop / "config" / "replicator.yaml"
    queries = {
        "names": "SELECT name, COUNT(*) AS n FROM rows AS r GROUP BY name",
        "again": "SELECT name, n + 1 AS m FROM rows AS r",
        "logged": "SELECT CAST(value AS STRING) AS v FROM rows AS r",
    }
    inputs = {"names": "lake.customers", "again": "gold.names", "logged": "raw"}
    said = {
        name: {"sql": f"./config/{name}.sql", "inputs": {"rows": inputs[name]}, "sink": "gold", "refresh": "manual"}
        for name in queries
    }
    said["names"] |= {"partition_by": "name"}
    for name, query in queries.items():
        (shop / "config" / f"{name}.sql").write_text(query)
    gold = "  gold: {kind: delta, path: ./gold}\n"
    config.write_text(config.read_text().replace("sinks:\n", f"sinks:\n{gold}") + f"projections: {json.dumps(said)}\n")
    append_records(shop, [(make_key(ADA), make_event(9_000, "u", make_customer(ADA, PLANTED, 44)))])
    run_until_caught_up(shop)
    run_command(shop, "refresh")
    assert {"gold/names", "gold/again", "gold/logged"} <= set(list_tables_with_secrets(read_lake(shop)))
    done = run_command(shop, "forget", "public.customers", ADA, "--yes")["result"]
    assert sorted(done["projections"]) == ["gold.again", "gold.logged", "gold.names"]
    assert not list_tables_with_secrets(read_lake(shop)) and OTHERS[1] in read_lake(shop)["gold/again"]
    assert len([told for told in done["versions"] if f"{shop}/gold/" in told]) == 3
    run_command(shop, "forget", "public.customers", ADA, "--yes", "--vacuum")
    assert not find_secret(shop)


def test_other_keys_of_the_row_are_reported(shop: Path) -> None:
    """A change with the key on one side belongs to the row. The operator decides about its earlier and later keys."""
    append_records(shop, change_key_and_back(9_000))
    run_until_caught_up(shop)
    said = run_command(shop, "forget", "public.customers", ADA, "--yes")["result"]
    assert said["linked"] == [[OLD]] and said["removed"]["raw"] == 9
    rows = DeltaTable(str(shop / "lake" / "cdc_events")).to_pyarrow_table().to_pylist()
    assert sorted(row["offset"] for row in rows if row["key"] is not None) == [0, 3, 6, 10]
    run_command(shop, "forget", "public.customers", OLD, "--yes", "--vacuum")
    assert not find_secret(shop)


def test_killed_erasure_already_applies_and_resumes(shop: Path) -> None:
    erasures = ErasureList(shop / "state" / "shop")
    hashes = erasures.open_hashes()
    hashed = hashes.hash_key("recorded", "public.customers", ("email",), (ADA,))
    erasures.put_erasure(hashes, Erasure("recorded", "public.customers", ("email",), hashed, datetime.now(UTC)))
    before = DeltaTable(str(shop / "lake" / "history")).to_pyarrow_table().num_rows
    append_records(
        shop,
        [
            (make_key(ADA), make_event(9_000, "u", make_customer(ADA, PLANTED, 40))),
            (make_key(CYD), make_event(9_001, "d", None)),
        ],
    )
    run_until_caught_up(shop)
    assert DeltaTable(str(shop / "lake" / "history")).to_pyarrow_table().num_rows == before
    assert (
        run_command(shop, "forget", "public.customers", ADA, "--yes", "--vacuum")["result"]["removed"]["lake.history"] == 3
    )
    assert not find_secret(shop)


def test_spill_files_of_a_killed_replay_are_removed(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the replay would resume with the erased row."""

    def dies(*_: object) -> None:
        raise RuntimeError("killed")

    again = ("replay", "public.customers", "--lane", "lake.customers", "--into", "again")
    with monkeypatch.context() as killed:
        killed.setattr(BulkLoader, "load_target", dies)
        run_command(shop, *again, code=1)
    laid = shop / "state" / "shop" / "replays" / "lake.again" / "shop" / SPILL_FOLDER
    assert list(laid.rglob("rows.arrow"))
    run_command(shop, "forget", "public.customers", ADA, "--yes", "--vacuum")
    assert not laid.exists()
    run_command(shop, *again)
    assert not find_secret(shop) and OTHERS[0] in read_lake(shop)["lake/again"]


def test_rows_of_a_killed_query_are_removed(shop: Path) -> None:
    """A query of the past builds the whole table in a temporary folder."""
    code = "import os; from replicator.application.operations import as_of; as_of.get_reader = lambda _: os._exit(9)"
    words = ["query", "lake.customers", "--as-of", f"{TOPIC}:0:3"]
    (shop / "tmp").mkdir()
    program = [sys.executable, "-c", f"{code}; from replicator.cli import main; main({words})"]
    killed = subprocess.run(program, cwd=shop, env={**os.environ, "TMPDIR": str(shop / "tmp")}, check=False)
    assert killed.returncode == 9 and list(shop.rglob(f"{AS_OF_TARGET}/_delta_log"))
    run_command(shop, "forget", "public.customers", ADA, "--yes", "--vacuum")
    assert not find_secret(shop)


def test_rejected_records_of_a_killed_replay_are_erased(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next replay would copy them into the dead letters."""

    def dies(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as killed:
        killed.setattr(table_swap, "_copy_dead_letters", dies)
        run_command(shop, "replay", "public.customers", "--lane", "lake.customers", code=1)
    run_command(shop, "forget", "public.customers", ADA, "--yes", "--vacuum")
    assert not find_secret(shop)
    run_command(shop, "replay", "public.customers", "--lane", "lake.customers")
    assert not find_secret(shop) and OTHERS[0] in read_lake(shop)["lake/customers"]


def test_target_that_is_built_during_the_question_is_not_missed(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was not about it, and a replay could copy the row into it."""

    def answer(*_: object) -> None:
        run_command(shop, "replay", "public.customers", "--lane", "lake.customers", "--into", "again")

    with monkeypatch.context() as asked:
        asked.setattr(CommandSession, "confirm", answer)
        refused = run_command(shop, "forget", "public.customers", ADA, code=1)["error"]
    assert "lake.again" in refused["sentence"] and not (shop / "state" / "shop" / "erasures.json").exists()
    run_command(shop, "forget", "public.customers", ADA, "--yes", "--vacuum")
    assert not find_secret(shop)


def test_invalid_erasures_are_refused(shop: Path) -> None:
    """Nothing is erased or stored, and the error says what to do."""

    def expect_refusal(*words: str, code: int = 2) -> str:
        error: str = run_command(shop, "forget", *words, code=code)["error"]["sentence"]
        assert not (shop / "state" / "shop" / "erasures.json").exists() and find_secret(shop)
        return error

    assert "a confirmation needs a terminal" in expect_refusal("public.customers", ADA)
    assert "no entry of `tables` matches 'public.other'" in expect_refusal("public.other", ADA, "--yes")
    assert "has 1 column (email), not 2" in expect_refusal("public.customers", ADA, "x", "--yes")
    assert "has no table" in expect_refusal("public.customers", ADA, "--yes", "--source", "elsewhere")
    lock = InstanceLock(shop / "state" / "shop", "shop")
    lock.acquire()
    assert "Another instance" in expect_refusal("public.customers", ADA, "--yes", code=5)
    lock.release()


def get_error_sentence(shop: Path, code: int) -> str:
    """Runs the program itself: this process would keep its lock."""
    done = run_program(shop, "run", "--until-caught-up", "--json", "-q")
    assert done.returncode == code, done.stdout + done.stderr
    said: str = parse_answer(done)["error"]["sentence"]
    return said


def test_incomplete_erasure_list_stops_the_program(shop: Path) -> None:
    """Without the key of the list, or under another name of the source, erased rows would return."""
    run_command(shop, "forget", "public.customers", ADA, "--yes")
    config, kept = shop / "config" / "replicator.yaml", shop / "state" / "shop" / "erasures.key"
    text, secret = config.read_text(), kept.read_text()
    config.write_text(text.replace("recorded", "renamed"))
    assert "Under another source name they would come back" in get_error_sentence(shop, code=2)
    config.write_text(text)
    kept.write_text("00" * 32)
    assert "is not the secret of the list" in get_error_sentence(shop, code=3)
    kept.unlink()
    assert "cannot be read" in get_error_sentence(shop, code=3)
    kept.write_text(secret)
    run_until_caught_up(shop)


def run_on_spark(folder: Path, *words: str) -> dict[str, Any]:
    """`run_command` on Spark."""
    done = run_program(folder, *words, "--json", "-q", "--set", "engine=spark")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = parse_answer(done)
    return found


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_spark_filters_and_erases_the_same(tmp_path: Path) -> None:
    """Also tables with deletion vectors and clustering, which only Spark writes."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "config").mkdir()
    more = """
      - {sink: lake, into: marked, deletion_vectors: true}
      - {sink: lake, into: clustered, cluster_by: [name]}"""
    (tmp_path / "config" / "replicator.yaml").write_text(
        CONFIG.format(letters="{path: ./letters}", database="", to=LITTLE + more)
    )
    append_records(tmp_path, make_changes(0))
    run_on_spark(tmp_path, "run", "--until-caught-up")
    said = run_on_spark(tmp_path, "forget", "public.customers", ADA, "--yes", "--vacuum")["result"]
    everything = {"raw": 7, "dead letters": 2, "lake.customers": 1, "lake.history": 3, "lake.marked": 1, "lake.clustered": 1}
    assert said["removed"] == everything
    assert {name for name in ("marked", "clustered") if any(f"lake/{name}," in told for told in said["versions"])}
    assert len(said["versions"]) == 2 and not find_secret_elsewhere(tmp_path)
    append_records(tmp_path, make_changes(1))
    run_on_spark(tmp_path, "run", "--until-caught-up")
    run_on_spark(tmp_path, "replay", "public.customers", "--lane", "lake.customers", "--into", "again")
    assert (
        not find_secret_elsewhere(tmp_path) and DeltaTable(str(tmp_path / "lake" / "again")).to_pyarrow_table().num_rows == 2
    )


def find_secret_elsewhere(folder: Path) -> list[str]:
    """The files with secrets, without older versions of the tables that only Spark writes."""
    return [path for path in find_secret(folder) if not path.startswith(("lake/marked", "lake/clustered"))]


def test_table_with_the_same_name_loses_nothing(shop: Path) -> None:
    """Its lanes have the targets. The other table was never read, so no run has refused its lanes yet."""
    run_command(shop, "replay", "public.customers", "--lane", "lake.customers", "--into", "again")
    config, before = shop / "config" / "replicator.yaml", read_lake(shop)
    text = config.read_text().replace("match: public.customers", "match: '*.customers'")
    config.write_text(text.replace("\n      - {sink: lake, into: history, policy: scd2}", ""))
    said = run_command(shop, "forget", "aside.customers", BOB, "--yes", code=2)["error"]
    assert "the key of table aside.customers is unknown" in said["sentence"]
    said = run_command(shop, "replay", "aside.customers", "--into", "again", code=2)["error"]
    assert "lake.again was started with other options" in said["sentence"]
    said = run_command(shop, "replay", "aside.customers", code=2)["error"]
    assert "aside.customers both go to customers in sink lake" in said["sentence"]
    run_command(shop, "drop", "aside.customers", "--yes", code=2)
    assert read_lake(shop) == before and any(BOB in rows for rows in before.values())
