"""Positions, states and locks on disk."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.delta.commits import KEPT_FILES, PositionFiles
from adapters.delta.folders import LocalFolder, LocalLaneLock
from replicator.domain.errors import DataLoss, Fatal, Fenced
from replicator.domain.policy.plan import DeleteHorizon, LaneState, state_from_json, state_to_json
from replicator.domain.position import Position, Span, TopicPartition

PARTITION = TopicPartition("cdc.items", 3)
GONE = (DeleteHorizon(5, (0, 7)), DeleteHorizon(9, (b"\0", "a"), (3, 4)))
STATE = LaneState(Position({PARTITION: 7}), (1, 2), None, (0, 9), (("cdc.items", "id-1"),), max_event_time={PARTITION: -5})
SPAN = Span(Position({PARTITION: 2}), Position({PARTITION: 7}))

elements = st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(), st.binary())
sequences = st.none() | st.lists(elements, min_size=1, max_size=4).map(tuple)
positions = st.dictionaries(st.builds(TopicPartition, st.text(), st.integers(0, 99)), st.integers(0, 2**63 - 1)).map(
    Position
)
identities = st.dictionaries(st.text(), st.text()).map(lambda d: tuple(sorted(d.items())))


@given(st.builds(LaneState, positions, sequences, sequences, sequences, identities))
def test_state_survives_json(state: LaneState) -> None:
    assert state_from_json(json.loads(json.dumps(state_to_json(state)))) == state


def test_state_without_watermark_has_no_event_time() -> None:
    assert "reached" not in state_to_json(LaneState())
    assert not state_from_json(state_to_json(LaneState())).max_event_time


def test_purged_sequence_survives_json() -> None:
    state = replace(STATE, purged_up_to=GONE[0], delete_horizons=GONE, purge_pending=True)
    assert state_from_json(json.loads(json.dumps(state_to_json(state)))) == state
    assert not {"forgotten", "deletes", "owed"} & set(state_to_json(STATE))


def test_record_is_read_back(tmp_path: Path) -> None:
    written = PositionFiles(LocalFolder(tmp_path), "lake.items").announce(4, STATE, SPAN)
    assert PositionFiles(LocalFolder(tmp_path), "lake.items").read_record(4) == written
    assert (written.state, written.span) == (STATE, SPAN)


def test_orphan_is_replaced(tmp_path: Path) -> None:
    kept = PositionFiles(LocalFolder(tmp_path), "lake.items")
    orphan = kept.announce(1, STATE, SPAN)
    again = kept.announce(1, None, None)
    assert kept.read_record(1) == again
    assert again.attempt != orphan.attempt
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.json"]


def test_missing_file_of_a_commit_is_data_loss(tmp_path: Path) -> None:
    with pytest.raises(DataLoss, match="lanes resync lake"):
        PositionFiles(LocalFolder(tmp_path), "lake.items").read_record(2)


GOOD = {"format": 1, "attempt": "a", "state": None, "span": None}
STATE_JSON = state_to_json(STATE)


FORGETTING = ("forgotten", "deletes")


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "null", "[]", "{}", '"x"', "[" * 100_000, "\0" * 80, '{"format": "1"}', '{"format": null}'),
        *(json.dumps({**GOOD, name: wrong}) for name in ("state", "span") for wrong in ({}, [], "x", 5)),
        *(json.dumps({**GOOD, "state": {**STATE_JSON, name: 5}}) for name in STATE_JSON),
        *(
            json.dumps({**GOOD, "state": {**STATE_JSON, name: w}})
            for name in FORGETTING
            for w in (5, [5], [[1, None]], [[1, [2], None]], "x")
        ),
        json.dumps({**GOOD, "state": {**STATE_JSON, "position": {"t": {"0": "x"}}}}),
        json.dumps({**GOOD, "state": {**STATE_JSON, "high": [None]}}),
    ],
)
def test_damaged_file_of_a_commit_is_data_loss(tmp_path: Path, content: str) -> None:
    (tmp_path / "2.json").write_text(content)
    with pytest.raises(DataLoss, match=r"lanes resync lake\.items") as lost:
        PositionFiles(LocalFolder(tmp_path), "lake.items").read_record(2)
    assert str(tmp_path / "2.json") in lost.value.sentence


def test_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"format": 2}')
    with pytest.raises(Fatal, match="format 2"):
        PositionFiles(LocalFolder(tmp_path), "lake.items").read_record(1)


def test_newest_files_are_kept(tmp_path: Path) -> None:
    kept = PositionFiles(LocalFolder(tmp_path), "lake.items")
    for version in range(1, KEPT_FILES + 6):
        kept.announce(version, STATE, SPAN)
    kept.prune(KEPT_FILES + 5)
    assert sorted(int(p.stem) for p in tmp_path.iterdir()) == list(range(6, KEPT_FILES + 6))


def test_second_holder_is_fenced_until_release(tmp_path: Path) -> None:
    path = tmp_path / "pipeline" / "lake.items.lock"
    first = LocalLaneLock(path, "lake.items")
    with pytest.raises(Fenced, match=f"process {os.getpid()}") as fenced:
        LocalLaneLock(path, "lake.items")
    assert fenced.value.exit_code == 5
    first.release()
    first.release()
    assert not hasattr(first, "__enter__"), "It is held from its construction."
    LocalLaneLock(path, "lake.items").release()
