"""Adapters of another package: an event log with its reader, and dead letters, each in a folder; and a format."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from box_options import BoxFormatOptions, BoxLogOptions
from pyarrow import feather

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.event_log.records import to_raw
from replicator.domain.errors import ConfigProblem
from replicator.domain.patterns import TopicFilter
from replicator.domain.policy import EVENT_LOG_POLICY
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, state_from_json, state_to_json
from replicator.ports.frames import ApplyOutcome, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.sink import SinkFeatures
from replicator.ports.stores import DeadLetter
from replicator.testing.fakes import FakeDeadLetters, FakeSource, list_positions, refuse_gap


class BoxLog:
    """`replicator.ports.sink.Sink` for event logs: an Arrow file of each write, and the state of each lane as JSON."""

    frame = pa.Table
    features = SinkFeatures(policies=frozenset({EVENT_LOG_POLICY}))

    def __init__(self, options: BoxLogOptions) -> None:
        self._folder = Path(options.path)

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def state(self, lane: Lane) -> LaneState | None:
        file = self._find_file(lane)
        return state_from_json(json.loads(file.read_text())) if file.exists() else None

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        applied = {}
        for write in writes:
            state = self.state(write.lane) or LaneState()
            refuse_gap(write, state.position)
            rows = write.folded.frame
            rows = rows.filter(
                pa.array([at >= state.position.get(place, 0) for place, at in list_positions(rows)], pa.bool_())
            )
            feather.write_feather(rows, str(self._folder / f"{len(list(self._folder.glob('*.arrow'))):06}.arrow"))
            done = replace(
                state, position=state.position.advanced_to(write.span.end), identity=tuple(write.identity.items())
            )
            self.skip(write.lane, done)
            applied[write.lane.id] = LaneOutcome(done.position, Counts(applied=rows.num_rows))
        return applied

    def skip(self, lane: Lane, state: LaneState) -> None:
        self._find_file(lane).write_text(json.dumps(state_to_json(state)))

    def reset(self, lane: Lane) -> None:
        self._find_file(lane).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is open."""

    def _find_file(self, lane: Lane) -> Path:
        return self._folder / f"{quote(lane.id, safe='')}.json"


def read_box(options: Mapping[str, Any]) -> FakeSource:
    """The records of the log whose topics are asked for."""
    wanted, source = TopicFilter(options["topics"]), FakeSource()
    for file in sorted(Path(options["path"]).glob("*.arrow")):
        raw = to_raw(feather.read_table(file))
        source.add_records(raw.filter(pa.array([wanted(topic) for topic in raw["topic"].to_pylist()], pa.bool_())))
    return source


class BoxDecoder(DebeziumJsonDecoder):
    """`replicator.ports.decoder.Decoder` of a box that stands on its feet."""

    def __init__(self, options: BoxFormatOptions) -> None:
        if options.label == "down":
            raise ConfigProblem("the box stands on its head", next_step="Turn it.")
        super().__init__({"keys": options.keys, "schema": options.declared})


class BoxDeadLetters(FakeDeadLetters):
    """`replicator.ports.stores.DeadLetters` in a file."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._file = Path(options["path"]) / "letters"
        if self._file.exists():
            super().write(pickle.loads(self._file.read_bytes()))

    def write(self, letters: Sequence[DeadLetter]) -> None:
        super().write(letters)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_bytes(pickle.dumps(self.read()))
