"""Lanes whose row in `_replicator.positions` is damaged can still be reset."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_table, open_sink

from adapters.postgres.lane_state import state_to_json
from replicator.domain.errors import DataLoss
from replicator.domain.policy.plan import LaneState

pytestmark = pytest.mark.postgres

GOOD = json.loads(state_to_json(LaneState()))
WRONG = [
    *({}, [], None, "x", 5),
    *({**GOOD, name: 5} for name in GOOD),
    *({**GOOD, name: {}} for name in ("high", "floor", "ledger_high")),
    {**GOOD, "high": [1.5]},
    {**GOOD, "position": {"cdc.public.items": {"0": "x"}}},
    {**GOOD, "position": {"cdc.public.items": 5}},
    {**GOOD, "reached": {"cdc.public.items": 5}},
    *({**GOOD, name: wrong} for name in ("forgotten", "deletes") for wrong in (5, [5], [[1, None]], ["x", [1]])),
]
CASES = [
    pytest.param(
        wrong,
        stopped,
        marks=() if stopped == (number % 2 == 0) else pytest.mark.long,
        id=f"{json.dumps(wrong)}-{stopped}",
    )
    for stopped in (False, True)
    for number, wrong in enumerate(WRONG)
]
"""A restart does not depend on the damage: the default run tests each damage with or without one, a long run both."""


@pytest.mark.parametrize(("wrong", "stopped"), CASES)
def test_damaged_state_is_data_loss_until_the_lane_is_reset(emptied_dsn: str, wrong: object, stopped: bool) -> None:
    feed = LaneWrites(make_table({"id": pa.int64(), "v": pa.string()}))
    lane = feed.lane
    with open_sink(emptied_dsn) as sink:
        apply_write(sink, feed.write({"id": 1, "v": "a"}))
        fetch_rows(emptied_dsn, f"UPDATE _replicator.positions SET state = '{json.dumps(wrong)}'")
        for act in (lambda: apply_write(sink, feed.write({"id": 2, "v": "b"})), lambda: sink.state(lane)):
            with pytest.raises(DataLoss, match=rf"_replicator\.positions is damaged.*lanes resync {lane.id}") as lost:
                act()
            assert lost.value.exit_code == 4
        assert fetch_rows(emptied_dsn, "SELECT id FROM mirror.items") == [(1,)]
        if not stopped:
            sink.reset(lane)
    with open_sink(emptied_dsn) as sink:
        if stopped:
            sink.reset(lane)
        assert sink.state(lane) is None
        assert fetch_rows(emptied_dsn, "SELECT id FROM mirror.items") == []
        apply_write(sink, LaneWrites(feed.table).write({"id": 3, "v": "c"}))
        assert fetch_rows(emptied_dsn, "SELECT id FROM mirror.items") == [(3,)]
