"""The parts of the embedded stack that need no server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from threading import Event, main_thread

import pytest
from paths import PROJECT

from adapters.jvm import jars, java
from adapters.jvm.lock_jars import KAFKA, PROVIDED
from adapters.stack import EmbeddedStack, layout, postgres
from adapters.stack.__main__ import main
from adapters.stack.connect import ConnectorState, connect_services, not_running, read_connector
from adapters.stack.kafka import cluster_id, kafka_services, write_properties
from adapters.stack.layout import StackHome, StackPorts, is_free
from adapters.stack.postgres import postgres_services
from adapters.stack.processes import find_processes, kill_processes, read_logs, require_free, spawn_server
from adapters.stack.spark import spark_services
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.ports.runtime import ServiceState, ServiceStatus, Stack


def test_the_jar_lock_names_no_host() -> None:
    assert not re.search(r"https?://|\bwww\.", jars.LOCK.read_text())


def test_every_locked_jar_has_a_hash_and_a_group() -> None:
    locked = jars.read_lock()
    assert set(locked) >= {"kafka", "connect", "debezium-postgres", "debezium-jdbc"}
    for members in locked.values():
        assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in members)
        assert all(jar.coordinate.count(":") in (2, 4) for jar in members)
    assert {j.coordinate for j in locked["kafka"]} >= {
        f"org.apache.kafka:kafka_2.13:{KAFKA}",
        "org.slf4j:slf4j-simple:1.7.36",
    }


@pytest.mark.parametrize("group", [name for name in jars.read_lock() if name.startswith("debezium")])
def test_a_plugin_does_not_hold_what_the_worker_provides(group: str) -> None:
    artifacts = {jar.coordinate.split(":")[1] for jar in jars.read_lock()[group]}
    assert artifacts.isdisjoint(PROVIDED)


def test_no_class_path_holds_two_versions_of_a_jar() -> None:
    for group, members in jars.read_lock().items():
        names = [jar.coordinate.split(":")[:2] for jar in members]
        assert len(names) == len(set(map(tuple, names))), group


@pytest.fixture
def local_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository on disk, as an earlier build leaves it, holding one jar."""
    monkeypatch.setenv("M2_REPO", str(tmp_path / "m2"))
    monkeypatch.setenv("REPLICATOR_JAR_CACHE", str(tmp_path / "cache"))
    jar = tmp_path / "m2" / "com" / "example" / "thing" / "1.0" / "thing-1.0.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"the right content")
    return jar


def test_a_local_jar_is_used_when_its_hash_matches(local_repository: Path, tmp_path: Path) -> None:
    jar = jars.Jar("com.example:thing:1.0", hashlib.sha256(local_repository.read_bytes()).hexdigest())
    jars._obtain_jar(jar, jars.cache_folder(), tmp_path / "scratch")
    assert jar.path(jars.cache_folder()).read_bytes() == b"the right content"


def test_a_jar_with_another_hash_is_not_stored(local_repository: Path, tmp_path: Path) -> None:
    jar = jars.Jar("com.example:thing:1.0", hashlib.sha256(b"the right content").hexdigest())
    local_repository.write_bytes(b"something else")
    with pytest.raises(jars.FetchError, match="locked SHA-256"):
        jars._try_fetch(jar, jar.path(jars.cache_folder()), tmp_path / "scratch", local=True)
    assert not jar.path(jars.cache_folder()).exists()


def test_the_lock_of_a_plugin_is_linked_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATOR_JAR_CACHE", str(tmp_path / "cache"))
    for jar in jars.read_lock()["debezium-postgres"]:
        path = jar.path(jars.cache_folder())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "of-an-older-lock.jar").touch()
    (folder / "dangling.jar").symlink_to(tmp_path / "gone")
    assert not jars.is_linked("debezium-postgres", folder)
    jars.link_plugin("debezium-postgres", folder)
    assert jars.is_linked("debezium-postgres", folder)
    assert {p.name for p in folder.iterdir()} == {j.path(Path()).name for j in jars.read_lock()["debezium-postgres"]}
    assert all(p.exists() for p in folder.iterdir())


def test_free_ports_are_free_and_distinct() -> None:
    ports = [port for _ in range(2) for port in StackPorts.find_free().mapping().values()]
    assert len(set(ports)) == 18, "a port was found again before its server has bound it"
    assert all(is_free(port) for port in ports)


def test_port_found_by_another_process_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server may bind it much later."""
    program = "from adapters.stack import layout; print(layout.find_free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        monkeypatch.setattr(layout, "_candidates", iter([taken, taken + 1, taken]))
        assert layout.find_free_port() != taken
        other.communicate("\n")
    monkeypatch.setattr(layout, "_candidates", iter([taken]))
    assert layout.find_free_port() == taken


def test_ports_are_named_in_text() -> None:
    assert StackPorts.parse("source=1, kafka=2") == StackPorts(source=1, kafka=2, controller=3)
    assert StackPorts.parse("") == StackPorts()
    for wrong in ("sauce=1", "source=one", "source"):
        with pytest.raises(ConfigProblem, match="names are source, datalake"):
            StackPorts.parse(wrong)


class StartedService:
    """A service that starts when requested."""

    def __init__(self, name: str, ports: Mapping[str, int], folder: Path) -> None:
        self.name, self.ports, self.log = name, ports, folder / name
        self.state = ServiceState.STOPPED
        self.pid: int | None = None

    def start(self) -> None:
        self.state = ServiceState.HEALTHY

    def wait(self, seconds: float) -> None:
        assert self.state is ServiceState.HEALTHY

    def status(self) -> ServiceStatus:
        return ServiceStatus(self.name, self.state, self.pid, self.ports, self.log)

    def stop(self) -> None:
        self.state = ServiceState.STOPPED

    kill = stop


def test_nothing_is_started_while_a_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        free, taken = StartedService("one", {}, tmp_path), StartedService("two", {"client": mute.getsockname()[1]}, tmp_path)
        stack = EmbeddedStack(tmp_path, services=lambda _: [free, taken])
        with pytest.raises(EnvironmentProblem, match=r"two cannot start: port .* REPLICATOR_STACK_PORTS"):
            stack.up()
    assert free.state is ServiceState.STOPPED


def test_a_busy_port_names_the_setting_that_changes_it(tmp_path: Path) -> None:
    """Each service of the stack, whatever it calls its ports itself."""
    for name in StackPorts().mapping():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            ports = replace(StackPorts(), **{name: taken.getsockname()[1]})
            home = StackHome.in_project(tmp_path, ports=ports)
            [service] = [
                one
                for one in (*postgres_services(home), *kafka_services(home), *connect_services(home), *spark_services(home))
                if taken.getsockname()[1] in one.ports.values()
            ]
            with pytest.raises(EnvironmentProblem, match=rf"(move|and) {name}( and .*)? with REPLICATOR_STACK_PORTS"):
                require_free(service.name, service.ports, ports)


def test_a_service_on_other_ports_is_named_at_once(tmp_path: Path) -> None:
    """This process stands for a server that was started with other ports."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        moved, stopped = StartedService("one", {"sql": 1}, tmp_path), StartedService("two", {}, tmp_path)
        moved.state, moved.pid = ServiceState.STARTING, os.getpid()
        stack = EmbeddedStack(tmp_path, services=lambda _: [moved, stopped])
        with pytest.raises(EnvironmentProblem, match=rf"one runs on port [\d, ]*{port}[\d, ]*, not on 1\. .*stack down`"):
            stack.up()
        assert stopped.state is ServiceState.STOPPED
        moved.ports = {"sql": port}
        assert [state.detail for state in stack.status()] == ["", ""]


def test_each_healthy_server_is_reported(tmp_path: Path) -> None:
    told: list[str] = []
    services = [StartedService("one", {}, tmp_path), StartedService("two", {}, tmp_path)]
    services[0].start()
    EmbeddedStack(tmp_path, services=lambda _: services, tell=told.append).up()
    assert told[0] == "starting two"
    assert sorted(line.split(" (")[0] for line in told[1:]) == ["one is healthy", "two is healthy"]


class InterruptedStart(StartedService):
    """A slow start, interrupted by Ctrl-C."""

    def __init__(self, folder: Path) -> None:
        super().__init__("one", {}, folder)
        self.has_started = Event()

    def start(self) -> None:
        signal.pthread_kill(main_thread().ident, signal.SIGINT)
        time.sleep(0.5)
        super().start()
        self.has_started.set()


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """Restores the default Ctrl-C handler. Commands of other tests in this process have changed it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_an_interrupted_start_leaves_no_server(tmp_path: Path) -> None:
    service = InterruptedStart(tmp_path)
    stack = EmbeddedStack(tmp_path, services=lambda _: [service])
    with pytest.raises(KeyboardInterrupt):
        stack.up()
    stack.down()
    assert service.has_started.wait(10)
    assert service.state is ServiceState.STOPPED
    with pytest.raises(EnvironmentProblem, match="one was not started: the stack is being stopped"):
        stack._bring_up(service)  # a thread of `up` that begins late


def test_the_embedded_stack_is_a_stack() -> None:
    stack: Stack = EmbeddedStack(PROJECT)
    [point] = entry_points(group="replicator.stacks", name="embedded")
    assert isinstance(stack, point.load())


def test_a_server_outlives_its_starter_and_is_found_by_its_mark(tmp_path: Path) -> None:
    mark = StackHome.in_project(tmp_path).process_mark("sleeper")
    program = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)", mark]
    starter = (
        "import sys; from pathlib import Path; from adapters.stack.processes import spawn_server\n"
        f"spawn_server({program!r}, Path('log'), cwd=Path('.'), env={{}})"
    )
    subprocess.run([sys.executable, "-c", starter], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PROJECT)}, check=True)
    [server] = find_processes(mark)
    assert os.getsid(server.pid) == server.pid
    assert find_processes(StackHome.in_project(tmp_path / "another").process_mark("sleeper")) == []
    kill_processes([server])
    assert find_processes(mark) == []


def test_a_long_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.stack.processes.LOG_LIMIT", 10)
    log = tmp_path / "server.log"
    log.write_text("more than ten bytes\n")
    spawn_server([sys.executable, "-c", ""], log, cwd=tmp_path, env={})
    assert (tmp_path / "server.log.1").read_text() == "more than ten bytes\n"


def test_logs_are_read_together_and_followed(tmp_path: Path) -> None:
    files = {"one": tmp_path / "one.log", "two": tmp_path / "two.log"}
    files["one"].write_text("a\nb\nc\nhalf")
    assert list(read_logs(files, last=2, follow=False)) == ["one | b", "one | c"]
    lines = read_logs(files, last=2, follow=True)
    assert [next(lines), next(lines)] == ["one | b", "one | c"]
    with files["one"].open("a") as log:
        log.write(" a line\n")
    files["two"].write_text("begun later\n")
    assert {next(lines), next(lines)} == {"one | half a line", "two | begun later"}
    files["two"].write_text("anew\n")
    assert next(lines) == "two | anew"


def test_an_old_or_broken_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    old = home / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    assert java.java_version(old) == 11
    assert java.java_version(tmp_path / "none") is None
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(home / "bin"))
    java.find_java.cache_clear()
    try:
        assert java.find_java() == java.bundled_java()
        monkeypatch.setattr(java, "bundled_java", lambda: None)
        java.find_java.cache_clear()
        with pytest.raises(EnvironmentProblem, match=r"Java 17 or newer; found: .*Java 11.*pip install"):
            java.find_java()
    finally:
        java.find_java.cache_clear()


def test_a_version_of_postgresql_that_is_not_here_is_named() -> None:
    assert postgres.choose_installation().major >= 15
    with pytest.raises(EnvironmentProblem, match="PostgreSQL 99 is not on this machine"):
        postgres.choose_installation(99)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders another user cannot reach")
def test_binaries_the_servers_user_cannot_reach_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "closed" / "package" / "pginstall18"
    for part in ("bin", "lib", "share"):
        (root / part).mkdir(parents=True)
    libraries = tmp_path / "closed" / "package.libs"
    libraries.mkdir()
    (libraries / "libpq.so").touch()
    (root / "bin" / "postgres").write_text("#!/bin/sh\n")
    (root / "bin" / "postgres").chmod(0o755)
    (tmp_path / "closed").chmod(0o700)
    monkeypatch.setattr(postgres, "SHARED_FOLDERS", (tmp_path,))
    user, closed = postgres.server_user(), postgres.Installation(root / "bin", 18)
    found = postgres.make_reachable(closed, user)
    assert found.bin == tmp_path / "replicator-postgresql-18" / "whole" / "package" / "pginstall18" / "bin"
    assert (found.bin / "postgres").is_file()
    assert (found.bin / "../../../package.libs/libpq.so").is_file()
    assert [p.name for p in (tmp_path / "replicator-postgresql-18").iterdir()] == ["whole"]
    assert postgres.make_reachable(closed, user) == found


def test_cluster_ids_are_what_the_storage_tool_takes() -> None:
    ids = {cluster_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", text) for text in ids)


def test_a_backslash_survives_a_properties_file(tmp_path: Path) -> None:
    path = write_properties(tmp_path / "p", {"a": r"x\y"})
    assert path.read_text() == "a=x\\\\y\n"


def test_a_connector_file_with_overrides(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"name": "one", "config": {"slot.name": "a", "tasks.max": "1"}}))
    assert read_connector(file, {"name": "two", "slot.name": "b"}) == ("two", {"slot.name": "b", "tasks.max": "1"})
    assert read_connector(file) == ("one", {"slot.name": "a", "tasks.max": "1"})


def test_a_failed_connector_shows_its_cause_and_the_next_step() -> None:
    trace = "\n".join(["outer", *[f"\tat frame {i}" for i in range(50)], "Caused by: the slot is gone", "\tat frame"])
    state = ConnectorState("c", "RUNNING", ("FAILED",), trace)
    assert state.failed
    assert not state.running
    shown = str(not_running("c", state))
    assert "tasks FAILED" in shown
    assert "Caused by: the slot is gone" in shown
    assert "frame 40" not in shown
    assert "replicator stack up" in shown
    assert not ConnectorState("c", "RUNNING", (), "").running


def test_check_says_what_to_do_when_connect_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    port = StackPorts.find_free().connect
    assert main(["--ports", f"connect={port}", "check"]) == 3
    assert "replicator stack up" in capsys.readouterr().err


def test_status_of_a_stack_that_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--project", str(tmp_path), "status"]) == 1
    assert capsys.readouterr().out.count("stopped") == 5


def test_an_unknown_service_is_answered_with_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--project", str(tmp_path), "logs", "zookeeper"]) == 3
    assert "postgres-source" in capsys.readouterr().err


def test_the_shipped_config_follows_the_ports_of_the_page() -> None:
    """The example of the documentation, through what every script does with it."""
    [said] = re.findall(
        r"REPLICATOR_STACK_PORTS=(\S+)$", (PROJECT / "docs/how-to/use-the-local-servers.md").read_text(), re.M
    )
    ports, clean = StackPorts.parse(said), {n: v for n, v in os.environ.items() if n not in StackPorts().environment()}
    script = 'source scripts/lib/venv.sh; source scripts/lib/ports.sh; follow_ports; "$VENV/bin/replicator" check; env'
    done = subprocess.run(
        ["bash", "-euc", script], cwd=PROJECT, capture_output=True, text=True, check=True,
        env={**clean, "REPLICATOR_STACK_PORTS": said, "REPLICATOR_VENV": sys.prefix, "TARGET_DSN": "postgresql://me:secret@elsewhere/mine"},
    )  # fmt: skip
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines() if "=" in line)
    wanted = {**ports.environment(), "TARGET_DSN": "postgresql://me:secret@elsewhere/mine"}
    assert {name: found.get(name) for name in wanted} == wanted, "what is set already stays"
    assert not set(ports.mapping().values()) & {5433, 5434, 5435, 29092, 29093, 8083}, "nothing is left behind"
    config = (PROJECT / "config" / "replicator.yaml").read_text()
    assert set(re.findall(r"\$\{(\w+):-[^}]*\d{4}", config)) == set(wanted), "the config names every one of them"


def test_the_second_port_of_the_broker_changes_with_the_first() -> None:
    assert StackPorts.parse("kafka=39092").controller == 39093
    assert StackPorts.parse("kafka=39092,connect=39093").controller == 39094
    assert StackPorts.parse("kafka=39092,controller=5").controller == 5
