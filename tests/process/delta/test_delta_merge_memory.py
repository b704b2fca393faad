"""A merge holds a limited part of the table in memory. If the limit is too small, it continues without the limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.table import TableMerger
from support.delta_writes import make_item_changes, make_write

from adapters.delta import merge
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.cli import ALLOCATORS, REBUILD_ALLOCATORS
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

ROWS = 2_000


@pytest.mark.parametrize("policy", ["scd1", "scd2"])
def test_merge_that_exceeds_its_memory_limit_runs_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    refused: list[str] = []
    execute = TableMerger.execute

    def record_merge(merger: TableMerger) -> object:
        try:
            return execute(merger)
        except DeltaError as error:
            refused.append(str(error))
            raise

    sink = DeltaRsSink({"path": str(tmp_path)})
    lane = make_lane(policy)
    loaded = make_write(make_item_changes(*range(ROWS)), policy=policy)
    sink.prepare(lane, loaded.plan)
    sink.apply([loaded], refuse_rejects)
    before = DeltaTable(str(tmp_path / "items")).version()
    changed = make_write(make_item_changes(*range(ROWS // 2), op="u", v="new"), ROWS, policy=policy)
    monkeypatch.setattr(merge, "memory_bound", lambda _: 1_000)
    monkeypatch.setattr(TableMerger, "execute", record_merge)
    sink.apply([changed], refuse_rejects)
    assert any(merge.EXHAUSTED in said for said in refused)
    assert DeltaTable(str(tmp_path / "items")).version() == before + 1
    rows = sink.read("items")
    assert sorted(rows["v"].to_pylist()).count("new") == ROWS // 2
    assert rows.num_rows == (ROWS if policy == "scd1" else ROWS + ROWS // 2)
    sink.close()


def test_allocators_are_set_before_arrow_and_delta_rs_are_imported() -> None:
    code = "import sys, os; import replicator.cli; print('pyarrow' in sys.modules, 'deltalake' in sys.modules);" + "".join(
        f"print(os.environ[{name!r}]);" for name in ALLOCATORS
    )
    plain = {name: value for name, value in os.environ.items() if name not in ALLOCATORS}
    told = subprocess.run([sys.executable, "-c", code], env=plain, check=True, capture_output=True, text=True).stdout
    assert told.splitlines() == ["False False", *ALLOCATORS.values()]


@pytest.mark.parametrize(("name", "alone"), [("replay", True), ("snapshot", True), ("run", False)])
def test_commands_over_an_event_log_keep_freed_memory(name: str, *, alone: bool) -> None:
    code = f"import sys, os; from replicator.cli import main; main.get_command(None, {name!r});" + "".join(
        f"print('pyarrow' in sys.modules, os.environ.get({name!r}));" for name in REBUILD_ALLOCATORS
    )
    plain = {name: value for name, value in os.environ.items() if name not in REBUILD_ALLOCATORS}
    told = subprocess.run([sys.executable, "-c", code], env=plain, check=True, capture_output=True, text=True).stdout
    assert told.splitlines() == [f"False {value if alone else None}" for value in REBUILD_ALLOCATORS.values()]


def test_delta_rs_reads_its_allocator_setting() -> None:
    told = {}
    for more in ("", ALLOCATORS["_RJEM_MALLOC_CONF"] + ",stats_print:true"):
        done = subprocess.run(
            [sys.executable, "-c", "import deltalake"],
            env={**os.environ, "_RJEM_MALLOC_CONF": more},
            check=True,
            capture_output=True,
            text=True,
        )
        told[more != ""] = done.stderr
    assert not told[False] and "opt.dirty_decay_ms: 500 " in told[True]
