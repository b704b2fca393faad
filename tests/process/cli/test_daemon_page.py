"""How commands find the daemon, also if another program uses its port."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from click.testing import Result

from replicator.cli.run import _start_page
from replicator.wiring.adapters import get_state_folder
from replicator.wiring.configuration import read_config
from replicator.wiring.daemon import DaemonContainer
from replicator.wiring.daemon_client import FILE, PageAddress


def test_commands_find_a_daemon_whose_port_is_taken(
    project: Path, run_cli: Callable[..., Result], run_json: Callable[..., dict[str, Any]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        elsewhere = f"http.address=127.0.0.1:{stranger.getsockname()[1]}"
        daemon: Any = DaemonContainer(loaded=read_config(project / "config" / "replicator.yaml", None, (elsewhere,)))
        daemon.instance().acquire()
        page = daemon.monitor()
        page.start(daemon.views())
        (file,) = project.rglob(FILE)
        try:
            assert page.taken is not None
            assert file.stat().st_mode & 0o777 == 0o600
            assert run_json("status", "--set", elsewhere)["result"]["running"] is True
            refused = run_cli("lanes", "pause", "lake.nothing", "--set", elsewhere)
            assert "lake.nothing" in refused.output and "does not run" not in refused.output
            written = msgspec.json.decode(file.read_bytes(), type=PageAddress)
        finally:
            page.close()
            daemon.instance().release()
        assert not file.exists()
    assert run_json("status", "--set", elsewhere)["result"]["running"] is False

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        url = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(written, url=url, pid=ended.pid)))
        assert run_json("status", "--set", elsewhere)["result"]["running"] is False, "its daemon was killed"
        stranger.setblocking(False)
        try:
            stranger.accept()
        except BlockingIOError:
            pass
        else:
            raise AssertionError("the token was shown to a stranger")


def test_http_server_of_another_program_is_no_daemon(project: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    """It answers 404 on the configured address, while no daemon runs."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as stranger:
        Thread(target=stranger.serve_forever, daemon=True).start()
        try:
            elsewhere = f"http.address=127.0.0.1:{stranger.server_port}"
            assert run_json("status", "--set", elsewhere)["result"]["running"] is False
        finally:
            stranger.shutdown()


@pytest.mark.parametrize("is_taken", [True, False])
def test_daemon_that_commands_cannot_find_logs_a_warning(project: Path, is_taken: bool) -> None:
    """Its port is taken or not set, and the file with its address cannot be written."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1] if is_taken else 0
        loaded = read_config(project / "config" / "replicator.yaml", None, (f"http.address=127.0.0.1:{port}",))
        daemon: Any = DaemonContainer(loaded=loaded)
        (get_state_folder(loaded) / FILE).mkdir(parents=True)
        notes: list[str] = []
        page = _start_page(cast(Any, SimpleNamespace(print_note=notes.append)), daemon)
        page.close()
    assert [note.startswith("warning: Commands such as `status` do not find the daemon: ") for note in notes] == [
        False,
        True,
    ]
    assert "reach the daemon" not in notes[0] and notes[0].startswith(
        "warning: no status page" if is_taken else "status page"
    )


def test_daemon_at_its_configured_address_needs_no_file(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    loaded = read_config(project / "config" / "replicator.yaml", None, (f"http.address=127.0.0.1:{port}",))
    (get_state_folder(loaded) / FILE).mkdir(parents=True)
    daemon: Any = DaemonContainer(loaded=loaded)
    page = daemon.monitor()
    try:
        assert page.start(daemon.views()) == f"http://127.0.0.1:{port}" and page.hidden is None
    finally:
        page.close()
