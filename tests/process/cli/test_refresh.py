"""The shipped examples of projections, and the command that refreshes them."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from deltalake import DeltaTable
from paths import PROJECT
from support.cli_program import parse_answer, run_program
from support.small_spark import SMALL

from replicator.application.operations.refresh import RefreshResult
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.settings import ConfigError, Loaded
from replicator.wiring import projections
from replicator.wiring.configuration import read_config, refuse_unusable
from replicator.wiring.container import Container, run_until_caught_up
from replicator.wiring.daemon import DaemonContainer

pytestmark = pytest.mark.slow
"""The program starts several times in each."""

EXAMPLES = PROJECT / "config" / "examples"
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
    write_closed_file(tmp_path / "dms" / "public" / "users" / "LOAD00000001.csv", USERS)
    write_closed_file(tmp_path / "dms" / "public" / "cities" / "LOAD00000001.csv", CITIES)
    return tmp_path


def write_closed_file(file: Path, text: str) -> None:
    """Writes a file with an old time, so that the source takes it as complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (time.time() - 3600,) * 2)


def run_json(project: Path, *arguments: str, code: int = 0) -> Any:
    done = run_program(project, *arguments, "--json", "-q")
    assert done.returncode == code, done.stdout + done.stderr
    return parse_answer(done)


def read_features(project: Path) -> dict[int, tuple[Any, ...]]:
    rows = DeltaTable(project / GOLD).to_pyarrow_table().to_pylist()
    assert len({row["user_id"] for row in rows}) == len(rows)
    return {row.pop("user_id"): tuple(row.values()) for row in rows}


def load_config(project: Path) -> Loaded:
    return read_config(project / "config" / "replicator.yaml", None, ())


def replicate(project: Path) -> None:
    """Does the work of `run --until-caught-up` in this process."""
    made = DaemonContainer(loaded=load_config(project))
    run_until_caught_up(made)
    assert made.projection_scheduler().refresh_all(threading.Event()) is None


def refresh(project: Path, *, full: bool = False) -> RefreshResult:
    loaded = load_config(project)
    with projections.open_refresher(loaded) as refreshing:
        (done,) = [refreshing.refresh(one, full=full) for one in projections.select_projections(loaded, ())]
    return done


def test_users_features(project: Path) -> None:
    """A changed user updates his old and his new city, and no other."""
    done = run_json(project, "run", "--until-caught-up")["result"]["projections"]
    assert [(one["name"], one["status"], one["kind"]) for one in done] == [("users_features", "current", "full")]
    assert read_features(project) == FEATURES
    write_closed_file(project / "dms" / "public" / "users" / "20211017-194324349.csv", MOVED)
    run_until_caught_up(Container(loaded=load_config(project)))
    part = refresh(project)
    assert (part.kind, part.groups) == ("groups", 2)
    (entry,) = DeltaTable(project / GOLD).history(1)
    assert json.loads(entry["replicatorRefresh"])["kind"] == "groups"
    after = read_features(project)
    assert after[3] == ("Steve Goodwin", "Boston", date(2021, 9, 19), "Massachusetts", 2, 3 / 4, 4)
    assert after[20] == ("Domingo Byrd", "Charlotte", date(2021, 9, 10), "North Carolina", 1, 1.0, 1)
    assert {user: after[user] for user in (73, 81, 11, 93, 17)} == {user: FEATURES[user] for user in (73, 81, 11, 93, 17)}
    again = refresh(project)
    assert (again.kind, again.version) == ("current", None)
    (whole,) = run_json(project, "refresh", "users_features", "--full")["result"]
    assert (whole["kind"], whole["rows"], whole["reads"]) == ("full", 10, {"users": 2, "cities": 1})
    assert read_features(project) == after
    with pytest.raises(ConfigProblem, match="users_features"):
        projections.select_projections(load_config(project), ["user_features"])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_users_features_on_spark(project: Path) -> None:
    """The same file, by Spark SQL. Each engine resumes with the table of the other."""
    run_until_caught_up(Container(loaded=load_config(project)))
    on_spark = read_config(project / "config" / "replicator.yaml", None, ("engine=spark", f"spark={json.dumps(SMALL)}"))
    with projections.open_refresher(on_spark) as refreshing:
        (one,) = projections.build_projections(on_spark)
        assert refreshing.refresh(one).kind == "full" and read_features(project) == FEATURES
        write_closed_file(project / "dms" / "public" / "users" / "20211017-194324349.csv", MOVED)
        run_until_caught_up(Container(loaded=load_config(project)))
        part = refreshing.refresh(one)
    assert (part.kind, part.groups) == ("groups", 2)
    assert read_features(project)[3] == ("Steve Goodwin", "Boston", date(2021, 9, 19), "Massachusetts", 2, 3 / 4, 4)
    assert refresh(project, full=True).rows == 10


def test_slow_refreshes_are_hints_of_check(project: Path) -> None:
    """Until the tables that are read by groups have a change data feed, and files per group."""
    file = project / "config" / "replicator.yaml"
    hints = run_json(project, "check")["result"]["hints"]
    assert [(one["code"], one["line"]) for one in hints] == [("slow_groups", 24)] * 2 + [("slow_groups", 29)] * 2
    assert hints[1]["suggestion"] == "add partition_by: [city], or a column computed from it"
    assert "projection users_features: " in run_program(project, "check").stdout
    better = "[{sink: silver, change_data_feed: true, partition_by: [city]}]"
    file.write_text(file.read_text().replace("[{sink: silver}]", better))
    assert run_json(project, "check")["result"]["hints"] == []


def test_gold_table_is_refreshed_while_the_program_runs(project: Path) -> None:
    made = DaemonContainer(loaded=load_config(project))
    keeper, supervisor = made.projection_scheduler(), made.supervisor()
    running = threading.Thread(target=supervisor.run, kwargs={"once": False})
    keeper.start()
    running.start()
    try:
        await_condition(lambda: (project / GOLD).is_dir() and len(read_features(project)) == 10)
        write_closed_file(project / "dms" / "public" / "users" / "20211017-194324349.csv", MOVED)
        await_condition(lambda: read_features(project)[3][1] == "Boston")
        (told,) = made.views().status()["projections"]
        assert (told["status"], told["error"]) == ("current", None)
    finally:
        made.stop().set()
        running.join()
        keeper.end(10.0)
    assert supervisor.problem is None


def await_condition(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_lineage_has_inputs_and_outputs(project: Path) -> None:
    replicate(project)
    with pytest.raises(Fatal):
        (project / "config" / "sql" / "users-features.sql").write_text("SELECT user_id, town AS city FROM users, cities")
        (project / "config" / "replicator.yaml").write_text(
            (project / "config" / "replicator.yaml").read_text().replace("    partition_by: city ", "    # ")
            .replace('    parameters: {reference_date: "2021-10-17"}\n', "")
        )  # fmt: skip
        refresh(project)
    lines = (project / "state" / "users-features" / "lineage.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["eventType"] for event in events] == ["START", "COMPLETE", "START", "FAIL"]
    for event in events:
        jsonschema.validate(event, RUN_EVENT, format_checker=jsonschema.FormatChecker())
    assert [event["run"]["runId"] for event in events][::2] == [event["run"]["runId"] for event in events][1::2]
    done = events[1]
    lake = project / "deltalake" / "users-features"
    assert [one["name"] for one in done["inputs"]] == [str(lake / "silver" / name) for name in ("users", "cities")]
    assert [one["facets"]["version"]["datasetVersion"] for one in done["inputs"]] == ["1", "1"]
    (output,) = done["outputs"]
    assert (output["name"], output["outputFacets"]["outputStatistics"]["rowCount"]) == (str(project / GOLD), 10)
    assert "town" in events[3]["run"]["facets"]["errorMessage"]["message"]


FACET = {
    "type": "object",
    "required": ["_producer", "_schemaURL"],
    "properties": {"_producer": {"type": "string", "format": "uri"}, "_schemaURL": {"type": "string", "format": "uri"}},
}
FACETS = {"type": "object", "additionalProperties": FACET}
DATASETS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["namespace", "name"],
        "properties": {
            "namespace": {"type": "string"},
            "name": {"type": "string"},
            "facets": FACETS,
            "outputFacets": FACETS,
        },
    },
}
RUN_EVENT = {
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "producer": {"type": "string", "format": "uri"},
        "schemaURL": {"type": "string", "pattern": r"^https://openlineage\.io/spec/.+RunEvent$"},
        "run": {
            "type": "object",
            "required": ["runId"],
            "properties": {
                "runId": {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
                "facets": FACETS,
            },
        },
        "job": {"type": "object", "required": ["namespace", "name"], "properties": {"facets": FACETS}},
        "inputs": DATASETS,
        "outputs": DATASETS,
    },
}
"""What OpenLineage's specification requires of a run event."""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("FROM users AS u", "FROM userz AS u", "'userz'"),
        ("SELECT\n", "SELEC\n", "not SQL"),
        ("PARTITION BY u.city ORDER", "ORDER", "cannot be computed alone"),
    ],
)
def test_invalid_query_is_refused_with_its_line(project: Path, old: str, new: str, words: str) -> None:
    file = project / "config" / "sql" / "users-features.sql"
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if old.strip() in text)
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError) as refused:
        refuse_unusable(load_config(project))
    (finding,) = refused.value.findings
    assert words in finding.message
    assert finding.file == str(file)
    assert finding.line in (line, line + 1)


def test_input_that_no_lane_writes_is_refused(project: Path) -> None:
    file = project / "config" / "replicator.yaml"
    file.write_text(file.read_text().replace("cities: silver.cities}", "cities: silver.citys}"))
    (finding,) = run_json(project, "check", code=2)["result"]
    assert (finding["code"], finding["suggestion"]) == ("unknown_table", "did you mean 'cities'?")
