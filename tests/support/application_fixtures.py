"""Turns off the log: rendering tracebacks takes longer than these tests."""

from __future__ import annotations

import pytest
import structlog


@pytest.fixture(autouse=True)
def quiet_log():
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[lambda *_: ""])
    yield
    structlog.configure(**before)
