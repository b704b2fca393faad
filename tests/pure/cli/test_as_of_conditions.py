"""An invalid condition is refused before the log is read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from replicator.application.operations.read_side import read_target
from replicator.domain.errors import ConfigProblem


def test_invalid_condition_does_not_read_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adapters.sinks.delta.sink import DeltaRsSink

    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))
    parts: Any = SimpleNamespace(
        sinks={"lake": SimpleNamespace(kind="delta")},
        resolve_lanes=lambda _: [],
        open_sink=lambda _: DeltaRsSink({"path": str(tmp_path)}),
    )
    monkeypatch.setattr("replicator.application.operations.as_of.list_lanes", lambda _: [])
    told: list[str] = []
    with pytest.raises(ConfigProblem, match="cannot be evaluated"):
        read_target(parts, "lake.t", as_of=datetime.now(UTC), where="nothing = 1", show_line=told.append)
    assert not told
