"""Logs of these tests go nowhere: rendering tracebacks takes longer than the tests."""

from __future__ import annotations

import pytest
import structlog


@pytest.fixture(autouse=True)
def quiet_log():
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[lambda *_: ""])
    yield
    structlog.configure(**before)
