"""A project whose event log has a random history, and replays of it with and without checkpoints."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from replicator.application.operations import checkpoint
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.ports.frames import Lane
from replicator.settings import Loaded
from replicator.testing.debezium import make_raw_frame
from replicator.testing.delivery import to_canonical, to_canonical_rows
from replicator.testing.histories import History
from replicator.testing.model import Change, fold_changes
from replicator.testing.source import EPOCH
from replicator.wiring.components import ConfiguredComponents
from replicator.wiring.configuration import read_config
from replicator.wiring.container import Container, run_until_caught_up
from support.small_spark import SMALL

ENTRIES = {
    "plain": "{sink: lake, into: plain}",
    "soft": "{sink: lake, into: soft, deletes: soft}",
    "by_column": "{sink: lake, into: by_column, partial_updates: by_column}",
    "versions": "{sink: lake, into: versions, policy: scd2}",
    "changes": "{sink: lake, into: changes, policy: append}",
    "partitioned": "{sink: lake, into: partitioned, partition_by: [k1]}",
}
CONFIG = """\
pipeline: shop
{engine}sources:
  recorded: {{format: debezium_json, transport: archive, path: ./archive}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./log, snapshots: {{every: 1 day, keep: 2}}{more}}}
dead_letters: {{path: ./dead_letters}}
tables:
  - match: public.items
    source: recorded
    {keys}to: [{{sink: raw}}, {entry}]
http: {{address: "127.0.0.1:{port}"}}
"""
OF_THE_RUN = "_cdc_applied_at"
ON_SPARK = f"engine: spark\nspark: {json.dumps(SMALL)}\n"
"""The first lines of a config that runs on Spark."""


class CheckpointedShop:
    """`entry`: the lane, one of `ENTRIES` or another. `more`: further keys of the event log. `engine`: empty, or
    `ON_SPARK`."""

    def __init__(self, folder: Path, history: History, entry: str, more: str = "", engine: str = "") -> None:
        self.folder, self.history, self.engine = folder, history, engine
        for name in ("config", "archive"):
            (folder / name).mkdir(parents=True)
        self.config(entry, more)

    def config(self, entry: str, more: str = "", port: int = 0) -> None:
        """Writes the config with these rules."""
        keys = "" if self.history.table().keys else "keys: []\n    "
        text = CONFIG.format(entry=ENTRIES.get(entry, entry), more=more, keys=keys, port=port, engine=self.engine)
        (self.folder / "config" / "replicator.yaml").write_text(text)

    @property
    def load_config(self) -> Loaded:
        return read_config(self.folder / "config" / "replicator.yaml", None, ())

    @property
    def parts(self) -> ConfiguredComponents:
        return ConfiguredComponents(self.load_config)

    @property
    def lane(self) -> Lane:
        return self.parts.resolve_lanes("public.items")[0]

    def reach(self, end: int) -> None:
        """Runs the program over the events before `end`."""
        self.record(end)
        run_until_caught_up(Container(loaded=self.load_config))

    def record(self, end: int) -> None:
        """The source has sent these."""
        lines = "".join(
            json.dumps(to_archive_record(row)) + "\n" for row in make_raw_frame(self.history, 0, end).to_pylist()
        )
        (self.folder / "archive" / "items.jsonl").write_text(lines)

    def replay_lane(self, folder: Path, until: datetime | None = None, *, from_snapshot: bool) -> tuple[Any, ...]:
        """The result of a replay: rows, the state without parts that depend on batch limits, and the number of the
        checkpoint."""
        begun = checkpoint.copy_newest(self.parts, self.lane, folder, until) if from_snapshot else None
        lake = checkpoint.prepare_lake(self.parts, self.lane, folder, begun, until)
        lake.catch_up()
        with checkpoint.open_target(lake, self.lane) as (sink, then):
            state: LaneState | None = sink.state(then)
        return read_canonical_rows(folder / "lake" / "then"), describe_state(state), begun and begun.number


def to_archive_record(row: dict[str, Any]) -> dict[str, Any]:
    """A record in the archive format."""
    at = row["timestamp"]
    headers = row["headers"] and [[one["name"], encode_base64(one["value"])] for one in row["headers"]]
    time = None if at is None else [0, int(at.timestamp() * 1000)]
    return {
        **row,
        "timestamp": time,
        "headers": headers,
        "key": encode_base64(row["key"]),
        "value": encode_base64(row["value"]),
    }


def encode_base64(value: bytes | None) -> Any:
    return None if value is None else {"base64": base64.b64encode(value).decode()}


def read_canonical_rows(table: Path) -> list[str]:
    if not (table / "_delta_log").is_dir():
        return []
    found: pa.Table = DeltaTable(str(table)).to_pyarrow_table()
    names = sorted(set(found.column_names) - {OF_THE_RUN})
    return sorted(repr([to_canonical(row[name]) for name in names]) for row in found.select(names).to_pylist())


def list_change_times(history: History) -> list[tuple[int, datetime]]:
    """The source time of every change, in order of arrival. A change without a time has the epoch."""
    return [(at, e.change.ts or EPOCH) for at, e in enumerate(history.events) if e.change is not None]


def list_changes_up_to(history: History, moment: datetime) -> list[Change]:
    """The changes at that time or earlier."""
    found = [history.events[at].change for at, ts in list_change_times(history) if ts <= moment]
    return [replace(change, ts=change.ts or EPOCH) for change in found if change is not None]


def equals_model(history: History, policy: str, moment: datetime, found: pa.Table) -> bool:
    """Whether these rows of a target equal the model's rows at that time."""
    table = history.table()
    there = [c.name for c in plan_for(policy, table).target if c.name in found.column_names]
    columns = [name for name in there if name not in {CDC_APPLIED_AT, EVENT_ID}]
    due, _ = fold_changes(policy, table.column_names, table.keys, list_changes_up_to(history, moment))
    return to_canonical_rows(found.to_pylist(), columns) == to_canonical_rows(due, columns)


def describe_state(state: LaneState | None) -> Any:
    return state and (dict(state.position), state.max_sequence, state.truncated_at, state.truncates, state.rule)
