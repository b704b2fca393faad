"""The shipped examples of projections, and the command that refreshes them."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cli_program import run_program
from deltalake import DeltaTable

pytestmark = pytest.mark.slow
"""The program starts several times in each."""

EXAMPLES = Path(__file__).parents[3] / "config" / "examples"
USERS = """\
73,Oliver Figueroa,Austin,2019-10-03
81,Samantha Myers,Austin,2021-01-01
11,Francis Davidson,Austin,2021-09-20
75,Malcolm Nelson,Boston,2021-07-15
36,Josephine Sherman,Boston,2021-08-14
69,Maurice Chandler,Boston,2021-09-25
20,Domingo Byrd,Charlotte,2021-09-10
3,Steve Goodwin,Charlotte,2021-09-19
93,Kate Mcbride,Chicago,2021-08-13
17,Martin Adkins,Chicago,2021-09-03
"""
CITIES = "Austin,Minnesota\nBoston,Massachusetts\nCharlotte,North Carolina\nChicago,Illinois\n"
FEATURES = {
    73: ("Oliver Figueroa", "Austin", date(2019, 10, 3), "Minnesota", 3, 1 / 3, 3),
    81: ("Samantha Myers", "Austin", date(2021, 1, 1), "Minnesota", 2, 1 / 3, 3),
    11: ("Francis Davidson", "Austin", date(2021, 9, 20), "Minnesota", 1, 1 / 3, 3),
    75: ("Malcolm Nelson", "Boston", date(2021, 7, 15), "Massachusetts", 3, 2 / 3, 3),
    36: ("Josephine Sherman", "Boston", date(2021, 8, 14), "Massachusetts", 2, 2 / 3, 3),
    69: ("Maurice Chandler", "Boston", date(2021, 9, 25), "Massachusetts", 1, 2 / 3, 3),
    20: ("Domingo Byrd", "Charlotte", date(2021, 9, 10), "North Carolina", 2, 1.0, 2),
    3: ("Steve Goodwin", "Charlotte", date(2021, 9, 19), "North Carolina", 1, 1.0, 2),
    93: ("Kate Mcbride", "Chicago", date(2021, 8, 13), "Illinois", 2, 1.0, 2),
    17: ("Martin Adkins", "Chicago", date(2021, 9, 3), "Illinois", 1, 1.0, 2),
}
MOVED = "U,3,Steve Goodwin,Boston,2021-09-19\n"
GOLD = Path("deltalake/users-features/gold/users_features")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The example of users, with its files."""
    (tmp_path / "config").mkdir()
    shutil.copy(EXAMPLES / "users-features.yaml", tmp_path / "config" / "replicator.yaml")
    shutil.copytree(EXAMPLES / "sql", tmp_path / "config" / "sql")
    put(tmp_path / "dms" / "public" / "users" / "LOAD00000001.csv", USERS)
    put(tmp_path / "dms" / "public" / "cities" / "LOAD00000001.csv", CITIES)
    return tmp_path


def put(file: Path, text: str) -> None:
    """A file that nobody writes to any more."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (time.time() - 3600,) * 2)


def asked(project: Path, *arguments: str, code: int = 0) -> Any:
    done = run_program(project, *arguments, "--json", "-q")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def features(project: Path) -> dict[int, tuple[Any, ...]]:
    rows = DeltaTable(project / GOLD).to_pyarrow_table().to_pylist()
    assert len({row["user_id"] for row in rows}) == len(rows)
    return {row.pop("user_id"): tuple(row.values()) for row in rows}


def test_users_features(project: Path) -> None:
    """A changed user updates the cities that he was and is in, and no other."""
    done = asked(project, "run", "--until-caught-up")["result"]["projections"]
    assert [(one["name"], one["status"], one["kind"]) for one in done] == [("users_features", "current", "full")]
    assert features(project) == FEATURES
    put(project / "dms" / "public" / "users" / "20211017-194324349.csv", MOVED)
    asked(project, "run", "--until-caught-up")
    (entry,) = DeltaTable(project / GOLD).history(1)
    assert entry["operationParameters"]["predicate"] == "city = 'Boston' OR city = 'Charlotte'"
    assert json.loads(entry["replicatorRefresh"])["kind"] == "groups"
    after = features(project)
    assert after[3] == ("Steve Goodwin", "Boston", date(2021, 9, 19), "Massachusetts", 2, 3 / 4, 4)
    assert after[20] == ("Domingo Byrd", "Charlotte", date(2021, 9, 10), "North Carolina", 1, 1.0, 1)
    assert {user: after[user] for user in (73, 81, 11, 93, 17)} == {user: FEATURES[user] for user in (73, 81, 11, 93, 17)}
    (again,) = asked(project, "refresh")["result"]
    assert (again["kind"], again["version"]) == ("current", None)
    (whole,) = asked(project, "refresh", "users_features", "--full")["result"]
    assert (whole["kind"], whole["rows"], whole["reads"]) == ("full", 10, {"users": 2, "cities": 1})
    assert features(project) == after
    lines = (project / "state" / "users-features" / "lineage.jsonl").read_text().splitlines()
    assert [json.loads(line)["eventType"] for line in lines] == ["START", "COMPLETE"] * 3
    unknown = asked(project, "refresh", "user_features", code=2)["error"]
    assert "users_features" in unknown["next_step"]


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("FROM users AS u", "FROM userz AS u", "users-features.sql", "'userz'"),
        ("SELECT\n", "SELEC\n", "users-features.sql", "not SQL"),
        ("PARTITION BY u.city ORDER", "ORDER", "users-features.sql", "cannot be computed alone"),
    ],
)
def test_a_query_that_cannot_be_used_is_refused_with_its_place(
    project: Path, old: str, new: str, place: str, words: str
) -> None:
    file = project / "config" / "sql" / "users-features.sql"
    line = file.read_text().splitlines().index(next(part for part in file.read_text().splitlines() if old.strip() in part))
    file.write_text(file.read_text().replace(old, new, 1))
    (finding,) = asked(project, "check", code=2)["result"]
    assert words in finding["message"]
    assert finding["file"].endswith(place)
    assert finding["line"] in (line + 1, line + 2)


def test_an_input_that_nobody_writes_is_refused(project: Path) -> None:
    file = project / "config" / "replicator.yaml"
    file.write_text(file.read_text().replace("cities: silver.cities}", "cities: silver.citys}"))
    (finding,) = asked(project, "check", code=2)["result"]
    assert (finding["code"], finding["suggestion"]) == ("unknown_table", "did you mean 'cities'?")
