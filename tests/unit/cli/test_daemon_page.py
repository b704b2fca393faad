"""How commands find the daemon, whoever has the port of its page."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from click.testing import Result

from replicator.wiring.configuration import read
from replicator.wiring.container import Container
from replicator.wiring.daemon_page import FILE, PageAddress


def test_commands_reach_a_daemon_whose_port_is_taken(
    project: Path, ask: Callable[..., Result], answer: Callable[..., dict[str, Any]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        elsewhere = f"http.address=127.0.0.1:{stranger.getsockname()[1]}"
        daemon: Any = Container(loaded=read(project / "config" / "replicator.yaml", None, (elsewhere,)))
        daemon.instance().hold()
        page = daemon.monitor()
        page.start(daemon.views())
        (file,) = project.rglob(FILE)
        try:
            assert page.taken is not None
            assert file.stat().st_mode & 0o777 == 0o600
            assert answer("status", "--set", elsewhere)["result"]["running"] is True
            refused = ask("lanes", "pause", "lake.nothing", "--set", elsewhere)
            assert "lake.nothing" in refused.output and "does not run" not in refused.output
            written = msgspec.json.decode(file.read_bytes(), type=PageAddress)
        finally:
            page.close()
            daemon.instance().release()
        assert not file.exists()
    assert answer("status", "--set", elsewhere)["result"]["running"] is False

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        url = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(written, url=url, pid=ended.pid)))
        assert answer("status", "--set", elsewhere)["result"]["running"] is False, "its daemon was killed"
        stranger.setblocking(False)
        try:
            stranger.accept()
        except BlockingIOError:
            pass
        else:
            raise AssertionError("the token was shown to a stranger")
