"""Scripts and supervisors depend on the numbers of the exit codes."""

import os
import signal

from replicator.cli import entry
from replicator.domain.errors import ExitCode


def test_exit_codes_have_their_numbers():
    numbers = {name: int(code) for name, code in ExitCode.__members__.items()}
    assert numbers == {
        "OK": 0, "RUNTIME": 1, "CONFIG": 2, "ENVIRONMENT": 3, "DATA_LOSS": 4, "FENCED": 5, "REJECTS": 6,
        "DIFFERENT": 7,
    }  # fmt: skip


def test_process_one_ends_at_a_sigterm(monkeypatch):
    """As in a container. Without a handler the kernel drops the signal, and the engine kills the program in the end."""
    codes, own = [], os.getpid()
    before = signal.signal(signal.SIGTERM, lambda *_: codes.append("dropped"))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr("replicator.cli.main", lambda: os.kill(own, signal.SIGTERM))
    try:
        entry()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert codes[0] == 128 + signal.SIGTERM
