"""The store of events that Spark writes keeps the contract, beside one that delta-rs writes."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.races import run_before
from support.spark_case import OPTIONS

from adapters.sinks.delta.event_store import DeltaEventStore
from adapters.sinks.delta.spark.sink import SparkEventStore
from replicator.domain.events import VersionConflict
from replicator.testing.stores_contract import HOSTILE, EventStoreContract, make_sample_event


class OnSpark:
    """Every other store at a place is written by delta-rs."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / f"lake {number}" / "events" for number in count())
        self.turn = count()

    def new_place(self) -> Any:
        return next(self.folders)

    def new_store(self, place: Any) -> Any:
        options = {"path": str(place), "compact_every": 3}
        return SparkEventStore({**options, **OPTIONS}) if next(self.turn) % 2 == 0 else DeltaEventStore(options)


@pytest.mark.long
class TestSparkEventStore(OnSpark, EventStoreContract):
    one_in = 200
    racers = 2


class TestBriefly(OnSpark):
    def test_both_writers_see_the_events_of_the_other(self) -> None:
        place = self.new_place()
        spark, rust = self.new_store(place), self.new_store(place)
        assert isinstance(spark, SparkEventStore)
        rust.append([make_sample_event(0, kind=HOSTILE[-1], minutes=0)])
        (first,) = spark.append(
            [make_sample_event(1, kind=HOSTILE[-1], event_data={"a": None, "b": "c"}, metadata={}, minutes=1)]
        )
        assert first.event.event_version == 2
        assert list(rust.read(HOSTILE[-1]))[1] == first.event

        run_before(spark, "_write", lambda: rust.append([make_sample_event(2)]))
        with pytest.raises(VersionConflict):
            spark.append([make_sample_event(3, expected_version=0)])
        assert not rust.append([make_sample_event(1)])[0].is_new
        assert [e.event_version for e in spark.read("Customer")] == [1]
