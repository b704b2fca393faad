from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from replicator import pipelines as dp
from support.staff_in_code import PARTS


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    config = structlog.get_config()
    was = structlog.is_configured()
    yield
    structlog.configure(**config) if was else structlog.reset_defaults()


@pytest.fixture
def staff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dp.Pipeline:
    """A pipeline without flows. Its folder is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REPLICATOR_ENV", raising=False)
    return dp.Pipeline("staff", **PARTS)
