"""Several writes of one lane in one `apply`, as a slow sink gets them. Each is applied after the previous one."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from support.pg_case import CollectedRejects, LaneWrites, fetch_rows, make_pg_lane, make_table, open_sink, refuse_any_reject

from adapters.sinks.postgres.lanes import with_row_provider
from adapters.sinks.postgres.shared_staging import SharedCopy, SharedStaging
from adapters.sinks.postgres.writer import advance_lane
from replicator.domain.policy.plan import Counts, LaneState

pytestmark = pytest.mark.postgres

TABLE = make_table({"id": pa.int64(), "n": pa.int64()})


def make_rows(start: int, end: int, n: int = 1) -> list[dict[str, int]]:
    return [{"id": i, "n": n} for i in range(start, end)]


@pytest.mark.parametrize("policy", ["scd1", "append"])
def test_each_write_is_applied_once(postgres_dsn: str, policy: str) -> None:
    """The writes have enough rows for the staging table."""
    feed = LaneWrites(TABLE, make_pg_lane(policy=policy))
    with open_sink(postgres_dsn) as sink:
        sink.prepare(feed.lane, feed.plan)
        for start in (0, 900):
            writes = [feed.write(*make_rows(at, at + 300)) for at in range(start, start + 900, 300)]
            assert sink.apply(writes, refuse_any_reject)[feed.lane.id].counts == Counts(applied=900)
    assert fetch_rows(postgres_dsn, "SELECT count(*), count(DISTINCT id) FROM mirror.items") == [(1800, 1800)]


def test_refused_row_does_not_affect_other_writes(postgres_dsn: str) -> None:
    fetch_rows(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint, n bigint CHECK (n < 10))")
    feed, rejects = LaneWrites(TABLE, make_pg_lane(policy="append")), CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        sink.prepare(feed.lane, feed.plan)
        writes = [feed.write(*make_rows(0, 5)), feed.write(*make_rows(5, 8, n=11)), feed.write(*make_rows(8, 20))]
        assert sink.apply(writes, rejects)[feed.lane.id].counts == Counts(applied=17, rejected=3)
    assert [key for _, key, _ in rejects] == [5, 6, 7]
    assert fetch_rows(postgres_dsn, "SELECT count(*), count(DISTINCT id) FROM mirror.items") == [(17, 17)]


def test_copied_write_may_follow_one_that_absorbs_a_change(postgres_dsn: str) -> None:
    """As on Spark, which copies the rows of both writes before the first one is applied."""
    feed = LaneWrites(TABLE, make_pg_lane(policy="scd2"))
    with open_sink(postgres_dsn) as sink:
        target = sink.prepare_target(feed.lane, feed.plan)
        state, writes = LaneState(), []
        for write in (feed.write({"id": 9}, op="d"), feed.write({"id": 1, "n": 2})):
            table = sink.create_shared_table(target)
            copy = SharedCopy.for_table(table, target, postgres_dsn, datetime.now(UTC))
            copied = copy.run([write.folded.frame], 0, 1)
            writes.append(with_row_provider(write, SharedStaging(table, state, 0, [copied])))
            state = advance_lane(write, state)
        assert sink.apply_writes(writes, refuse_any_reject)[feed.lane.id].counts == Counts(applied=2)
        assert sink.state(feed.lane).max_side_table_sequence is not None
    assert fetch_rows(postgres_dsn, "SELECT id, n FROM mirror.items_current") == [(1, 2)]
