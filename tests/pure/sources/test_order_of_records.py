"""Records of a window in the order of their positions, without a copy where possible."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from adapters.event_log import FEW, drop_repeated, sort_records
from replicator.domain.change import RAW

Place = tuple[str, int, int]


def frame(places: Sequence[Place]) -> pa.Table:
    rows = [{"topic": t, "partition": p, "offset": o, "value": f"{t}-{p}-{o}".encode()} for t, p, o in places]
    return pa.Table.from_pylist(rows, RAW)


def places(rows: pa.Table) -> list[Place]:
    found = rows.to_pylist()
    assert all(row["value"] == f"{row['topic']}-{row['partition']}-{row['offset']}".encode() for row in found)
    return [(row["topic"], row["partition"], row["offset"]) for row in found]


def stretch(first: int, rows: int = FEW, partition: int = 0, topic: str = "t") -> list[Place]:
    return [(topic, partition, first + i) for i in range(rows)]


def buffers(rows: pa.Table) -> set[int]:
    """Where the bytes of values are."""
    return {chunk.buffers()[2].address for chunk in rows["value"].chunks}


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([stretch(0), stretch(FEW)], id="in order"),
        pytest.param([stretch(0), stretch(FEW + 9)], id="with a hole"),
        pytest.param([stretch(2 * FEW), stretch(0), stretch(FEW)], id="stretches"),
        pytest.param([stretch(0) + stretch(2 * FEW), stretch(FEW) + stretch(3 * FEW)], id="interlaced"),
        pytest.param([stretch(0, partition=1), stretch(0), stretch(FEW, partition=1), stretch(FEW)], id="partitions"),
        pytest.param([stretch(0, topic="u"), stretch(0)], id="topics"),
    ],
)
def test_runs_of_records_are_reordered_without_a_copy(told: list[list[Place]]) -> None:
    rows = pa.concat_tables([frame(part) for part in told])
    found = sort_records(rows)
    assert places(found) == sorted(place for part in told for place in part)
    assert buffers(found) <= buffers(rows)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_is_sorted_and_duplicates_are_dropped(seed: int) -> None:
    made = random.Random(seed)
    every = [(t, p, o) for t in "tu" for p in range(2) for o in range(made.randint(1, 300))]
    told = every + made.choices(every, k=made.choice([0, 1, 200]))
    made.shuffle(told)
    assert places(drop_repeated(sort_records(frame(told)))) == sorted(every)


def test_overlapping_runs_are_read_once() -> None:
    rows = pa.concat_tables([frame(stretch(0, 3 * FEW)), frame(stretch(FEW, FEW)), frame(stretch(2 * FEW, 2 * FEW))])
    assert places(drop_repeated(sort_records(rows))) == stretch(0, 4 * FEW)
