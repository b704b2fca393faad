"""The checkpoints from which a replay may start, and when the next one is due."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from replicator.domain.event_log import Checkpoint, CheckpointSchedule, LogCut, find_newest_usable
from replicator.domain.position import Position, TopicPartition

PLACE, OTHER = TopicPartition("cdc.items", 0), TopicPartition("cdc.items", 1)
NOON = datetime(2026, 5, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
TAKEN = Checkpoint(
    number=1,
    lane="lake.items",
    table="public.items",
    rules="r",
    position=Position({PLACE: 10}),
    begun=Position({PLACE: 0}),
    newest=NOON,
    taken_at=NOON + HOUR,
    rows=3,
    bytes=9,
    identity=(("cdc.items", "first"),),
)


def test_checkpoint_is_read_back_unchanged() -> None:
    assert Checkpoint.from_json(TAKEN.to_json()) == TAKEN
    with pytest.raises(ValueError, match="another format"):
        Checkpoint.from_json(TAKEN.to_json() | {"format": 2})


def test_checkpoint_of_a_recreated_topic_does_not_match() -> None:
    assert (
        TAKEN.has_same_topics({"cdc.items": "first"})
        and TAKEN.has_same_topics({})
        and TAKEN.has_same_topics({"cdc.more": "x"})
    )
    assert not TAKEN.has_same_topics({"cdc.items": "second"})


@pytest.mark.parametrize(
    ("rules", "until", "usable"),
    [
        ("r", None, True),
        ("others", None, False),
        ("r", NOON, True),
        ("r", NOON - HOUR, False),
        ("r", LogCut(end=Position({PLACE: 10})), True),
        ("r", LogCut(end=Position({PLACE: 9})), False),
        ("r", LogCut(end=Position({PLACE: 10}), at=NOON - HOUR), False),
        ("others", LogCut(end=Position({PLACE: 10})), False),
    ],
)
def test_checkpoint_with_later_records_is_not_usable(rules: str, until: datetime | LogCut | None, *, usable: bool) -> None:
    assert TAKEN.is_usable(rules, until) is usable
    assert find_newest_usable([TAKEN], rules, until) == (TAKEN if usable else None)


def test_newest_usable_checkpoint_is_chosen() -> None:
    later = replace(TAKEN, number=2, position=Position({PLACE: 20}), newest=NOON + HOUR)
    assert find_newest_usable([later, TAKEN], "r") == later
    assert find_newest_usable([later, TAKEN], "r", NOON) == TAKEN
    assert find_newest_usable([later, TAKEN], "r", LogCut(end=Position({PLACE: 15}))) == TAKEN


@pytest.mark.parametrize(
    ("every", "after", "position", "waited", "due"),
    [
        (3600, None, {PLACE: 11}, HOUR, True),
        (3600, None, {PLACE: 11}, HOUR / 2, False),
        (3600, None, {PLACE: 10}, HOUR * 9, False),
        (None, 5, {PLACE: 14}, HOUR * 9, False),
        (None, 5, {PLACE: 12, OTHER: 3}, timedelta(0), True),
        (3600, 5, {PLACE: 15}, timedelta(0), True),
    ],
)
def test_checkpoint_is_due_by_time_or_by_records(
    every: float | None, after: int | None, position: dict[TopicPartition, int], waited: timedelta, *, due: bool
) -> None:
    """Some time after the last one, if records have arrived since; or after a number of records over all partitions."""
    assert CheckpointSchedule(every, after, 2).is_due(TAKEN, Position(position), TAKEN.taken_at + waited) is due
    assert CheckpointSchedule(every, after, 2).is_due(None, Position(position), NOON), "the first one at once"
    assert not CheckpointSchedule(every, after, 2).is_due(None, Position({}), NOON), "of nothing there is none"
