"""A condition that makes no sense is said so, and no log is read for it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from replicator.domain.errors import ConfigProblem
from replicator.wiring.target_reader import read_target

ANY: Any = None


def test_a_wrong_condition_is_not_looked_for_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adapters.sinks.delta.sink import DeltaRsSink

    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))
    loaded: Any = SimpleNamespace(settings=SimpleNamespace(sinks={"lake": ANY}, resolve_lanes=lambda _: []))
    monkeypatch.setattr("replicator.wiring.adapters.build_sink", lambda *_: DeltaRsSink({"path": str(tmp_path)}))
    monkeypatch.setattr("replicator.wiring.target_reader.list_lanes", lambda _: [])
    told: list[str] = []
    with pytest.raises(ConfigProblem, match="cannot be evaluated"):
        read_target(loaded, "lake.t", as_of=datetime.now(UTC), where="nothing = 1", tell=told.append)
    assert not told
