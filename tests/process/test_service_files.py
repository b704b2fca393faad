"""The files that run the program as a service, without the engines that read them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from paths import PROJECT
from support.dockerfile import read_stages

DOCKERFILE = PROJECT / "Dockerfile"
UNIT = PROJECT / "deploy" / "systemd" / "replicator@.service"
INSTALLED = "/opt/replicator"
BUILD_FOLDER = "/src"


def test_the_dockerfile_passes_its_linter():
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "replicator@shop.service"
    # A user and a program that are here: systemd looks for both.
    here = {"/opt/replicator/bin/replicator": sys.executable, "=replicator\n": "=root\n"}
    text = UNIT.read_text()
    for before, after in here.items():
        assert before in text
        text = text.replace(before, after)
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The program as the target `slim` installs it: each COPY and RUN of its build, below a temporary folder."""
    root = tmp_path_factory.mktemp("image")
    base = root / "base"
    subprocess.run([sys.executable, "-m", "venv", base], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment["PATH"] = f"{base / 'bin'}{os.pathsep}{environment['PATH']}"
    for word, rest in read_stages(DOCKERFILE)["build"]:
        here = (root / BUILD_FOLDER.strip("/")).resolve()
        here.mkdir(exist_ok=True)
        match word:
            case "ARG":
                name, _, value = rest.partition("=")
                environment[name] = value.strip('"')
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    copy = shutil.copytree if (PROJECT / source).is_dir() else shutil.copy
                    copy(PROJECT / source, here / target)
            case "RUN":
                command = rest.replace(INSTALLED, str(root / "installed"))
                subprocess.run(["/bin/sh", "-c", command], cwd=here, env=environment, check=True)
            case _:
                assert word in ("FROM", "ENV", "WORKDIR")
    return root / "installed" / "bin"


CONFIG = """\
sources: {recorded: {format: debezium_json, transport: archive, path: ./archive}}
sinks: {lake: {kind: delta, path: ./deltalake}}
tables: [{match: public.*, source: recorded, schema: {id: int64, name: string}, to: [{sink: lake}]}]
"""


def make_record():
    """A Debezium change in the archive format."""
    source = {
        "connector": "postgresql",
        "db": "shop",
        "schema": "public",
        "table": "customers",
        "lsn": 1,
        "txId": 1,
        "ts_ms": 1,
    }
    value = {"op": "c", "before": None, "after": {"id": 1, "name": "Anna"}, "source": source, "ts_ms": 1}
    place = {"topic": "cdc.public.customers", "partition": 0, "offset": 0, "timestamp": 1, "headers": None}
    return json.dumps({**place, "key": json.dumps({"id": 1}), "value": json.dumps(value)})


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_image_has_all_that_the_local_engine_needs(installed, tmp_path):
    for name in ("config", "archive"):
        (tmp_path / name).mkdir()
    shutil.copy(PROJECT / "config" / "replicator.yaml", tmp_path / "config" / "shipped.yaml")
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    (tmp_path / "archive" / "all.jsonl").write_text(make_record())
    commands = (
        ["--version"],
        ["check", "-c", "config/shipped.yaml"],
        ["check"],
        ["run", "--until-caught-up"],
        ["query", "customers"],
    )
    environment = {"PATH": str(installed)}
    for command in commands:
        done = subprocess.run(
            [installed / "replicator", *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "Anna" in done.stdout
    assert not (installed / "pip").exists()
