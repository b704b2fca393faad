"""The Dockerfile, the systemd unit and the Kubernetes objects."""

from __future__ import annotations

import json
import re
import tomllib
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import PurePath
from typing import Any

import kubernetes_validate
import pytest
from paths import PROJECT
from ruamel.yaml import YAML
from support.dockerfile import read_stages

from replicator.application.options import RuntimeOptions
from replicator.cli.start import LAKE
from replicator.domain.errors import ExitCode
from replicator.settings import load_settings
from replicator.settings.environment import ENV_FILE

STAGES = read_stages(PROJECT / "Dockerfile")
FINAL = ("slim", "spark")
PIPELINE = "/srv/replicator"
PROJECT_FILE = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
OBJECTS: dict[str, dict[str, Any]] = {
    one["kind"]: one for one in YAML(typ="safe").load_all(PROJECT / "deploy" / "kubernetes" / "replicator.yaml")
}
POD: dict[str, Any] = OBJECTS["StatefulSet"]["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]
LONGEST_STOP = 3 * RuntimeOptions().drain + 5
"""Seconds of a stop with one sink that hangs: sources and sinks, that sink, projections, the page."""


def read_unit() -> ConfigParser:
    unit = ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(PROJECT / "deploy" / "systemd" / "replicator@.service")
    return unit


def read_last(stage: str, instruction: str) -> str:
    return [rest for word, rest in STAGES[stage] if word == instruction][-1]


def test_default_target_is_slim() -> None:
    assert list(STAGES)[-1] == "slim"


@pytest.mark.parametrize("stage", FINAL)
def test_image_runs_the_program_as_an_unprivileged_user(stage: str) -> None:
    """In exec form: a shell would not pass on signals."""
    assert json.loads(read_last(stage, "ENTRYPOINT")) == ["replicator"]
    assert json.loads(read_last(stage, "CMD")) == ["run"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", read_last(stage, "USER"))
    assert read_last(stage, "WORKDIR") == PIPELINE
    assert json.loads(read_last(stage, "VOLUME")) == [
        f"{PIPELINE}/{name}" for name in ("config", "state", "lake", "deltalake")
    ]


def test_command_of_the_page_runs_a_project_of_init() -> None:
    """Everything but its volumes is read-only."""
    page = (PROJECT / "docs" / "how-to" / "run-as-a-service.md").read_text()
    command = next(block for block in page.split("```") if "docker run --detach" in block)
    mounts = set(re.findall(r"--volume \S+?:(/\S+)", command.replace('"', "")))
    assert mounts == {f"{PIPELINE}/{path}" for path in ("config:ro", f"{ENV_FILE}:ro", "state", PurePath(LAKE))}
    made = read_last("slim", "RUN").split()
    assert {f"{PIPELINE}/state", f"{PIPELINE}/{PurePath(LAKE)}"} <= {*made}  # Named volumes get the owner of these.


@pytest.mark.parametrize("stage", FINAL)
def test_image_has_no_build_tools(stage: str) -> None:
    written = " ".join(rest for word, rest in STAGES[stage] if word == "RUN")
    assert not re.search(r"pip install|gcc|build-essential|-dev\b|jdk(?!-17-jre-headless)", written)
    assert [rest for word, rest in STAGES[stage] if word == "COPY"] == [
        f"--from={'build' if stage == 'slim' else 'build-spark'} /opt/replicator /opt/replicator"
    ]


def test_base_images_have_a_version() -> None:
    assert all(re.search(r":\d+\.\d+\.\d+-", stage[0][1]) for stage in STAGES.values())


def test_every_package_of_an_image_is_locked() -> None:
    """A constraint with a hash lets pip refuse packages without one."""
    commands = [c for stage in ("build", "build-spark") for w, r in STAGES[stage] if w == "RUN" for c in r.split("&&")]
    installs = [c for c in commands if re.search(r"\bpip .*(?<!un)install\b", c)]
    assert len(installs) >= 4
    assert [c for c in installs if not re.search(r"--constraint requirements|--require-hashes|--no-deps", c)] == []


def test_build_context_has_the_copied_files() -> None:
    rules = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    sent = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    copied = [
        source
        for stage in ("build", "build-spark")
        for word, rest in STAGES[stage]
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert set(copied) == sent
    assert all((PROJECT / source).exists() for source in copied)
    assert any(fnmatch("replicator/cli/__pycache__", rule) for rule in rules[1:])


def test_unit_restarts_after_recoverable_errors_only() -> None:
    service = read_unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == {
        ExitCode.CONFIG, ExitCode.DATA_LOSS, ExitCode.REJECTS,
    }  # fmt: skip
    assert int(service["TimeoutStopSec"].removesuffix("s")) > LONGEST_STOP
    assert service["KillMode"] == "mixed" and service["ExecStart"].endswith("/replicator run")


def test_unit_gives_a_pipeline_its_own_folder_only() -> None:
    service = read_unit()["Service"]
    assert service["WorkingDirectory"] == f"%S/{service['StateDirectory']}" and "%i" in service["StateDirectory"]
    assert service["ProtectSystem"] == "strict" and service["NoNewPrivileges"] == "yes"
    assert service["User"] != "root" and service["CapabilityBoundingSet"] == ""


@pytest.mark.parametrize("kind", OBJECTS)
def test_kubernetes_objects_are_valid(kind: str) -> None:
    kubernetes_validate.validate(OBJECTS[kind], kubernetes_validate.latest_version(), strict=True)


def test_one_pod_runs_and_has_time_to_stop() -> None:
    spec = OBJECTS["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert POD["terminationGracePeriodSeconds"] > LONGEST_STOP


def test_pod_matches_the_image() -> None:
    user, group = map(int, read_last("slim", "USER").split(":"))
    rights = POD["securityContext"]
    assert (rights["runAsUser"], rights["runAsGroup"], rights["fsGroup"]) == (user, group, group)
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert CONTAINER["image"].endswith(f"/replicator:{PROJECT_FILE['version']}")
    writable = [each["mountPath"] for each in CONTAINER["volumeMounts"] if not each.get("readOnly")]
    assert writable == [PIPELINE, "/tmp"]


def test_references_between_objects_are_valid(tmp_path) -> None:
    """The config of the pod: its secrets are mounted, and probes and service reach its page."""
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    (tmp_path / "config").mkdir()
    assert mounts["config"] == f"{PIPELINE}/config"
    for name, text in OBJECTS["ConfigMap"]["data"].items():
        (tmp_path / "config" / name).write_text(text)
    for name, text in OBJECTS["Secret"]["stringData"].items():
        (tmp_path / name).write_text(text)
    environ = {each["name"]: each["value"].replace(mounts["secrets"], str(tmp_path)) for each in CONTAINER["env"]}
    assert all(name.endswith("_FILE") for name in environ)
    loaded = load_settings(tmp_path / "config" / "replicator.yaml", environ=environ)
    assert loaded.warnings == ()
    assert loaded.settings.sinks["lake"].path == str(tmp_path / "deltalake")
    assert loaded.settings.state == str(tmp_path / "state")
    [port] = CONTAINER["ports"]
    assert loaded.settings.http.address == f"0.0.0.0:{port['containerPort']}"
    paths = {kind: CONTAINER[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {each["port"] for each in paths.values()} == {port["name"]}
    assert [each["path"] for each in paths.values()] == ["/livez", "/livez", "/readyz"]
    service = OBJECTS["Service"]["spec"]
    assert service["ports"][0]["targetPort"] == port["name"] and service["publishNotReadyAddresses"]
    assert service["selector"] == OBJECTS["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    volumes = {each["name"]: each for each in POD["volumes"]}
    assert volumes["config"]["configMap"]["name"] == OBJECTS["ConfigMap"]["metadata"]["name"]
    assert volumes["secrets"]["secret"]["secretName"] == OBJECTS["Secret"]["metadata"]["name"]
