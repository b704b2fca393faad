"""With which snapshots of a lane's state a replay may begin, and when one is due."""

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


def test_it_is_read_as_it_was_written() -> None:
    assert Checkpoint.from_json(TAKEN.to_json()) == TAKEN
    with pytest.raises(ValueError, match="another format"):
        Checkpoint.from_json(TAKEN.to_json() | {"format": 2})


def test_offsets_of_a_recreated_topic_differ() -> None:
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
def test_none_of_its_records_may_be_later(rules: str, until: datetime | LogCut | None, *, usable: bool) -> None:
    assert TAKEN.is_usable(rules, until) is usable
    assert find_newest_usable([TAKEN], rules, until) == (TAKEN if usable else None)


def test_the_newest_of_those_counts() -> None:
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
def test_one_is_due(
    every: float | None, after: int | None, position: dict[TopicPartition, int], waited: timedelta, *, due: bool
) -> None:
    """Some time after the last one, where something has come since; or once so many records have, of all partitions."""
    assert CheckpointSchedule(every, after, 2).is_due(TAKEN, Position(position), TAKEN.taken_at + waited) is due
    assert CheckpointSchedule(every, after, 2).is_due(None, Position(position), NOON), "the first one at once"
    assert not CheckpointSchedule(every, after, 2).is_due(None, Position({}), NOON), "of nothing there is none"
