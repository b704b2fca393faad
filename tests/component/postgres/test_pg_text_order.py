"""Text columns for sequences, in existing tables."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, fetch_rows, make_pg_lane, make_table, open_sink

from replicator.domain.errors import Fatal
from replicator.domain.policy.policies import plan_for
from replicator.domain.transform.rows import RowTransforms

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(("kind", "fits"), [("text", False), ('varchar(9) COLLATE "C"', True), ("bigint", False)])
def test_text_sequence_column_needs_the_c_collation(postgres_dsn: str, kind: str, fits: bool) -> None:
    fetch_rows(postgres_dsn, f"CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, _cdc_seq_1 {kind})")
    feed = LaneWrites(make_table({"id": pa.int64(), "at": pa.string()}))
    plan = plan_for("scd1", feed.table, None, RowTransforms(("at",)))
    with open_sink(postgres_dsn) as sink:
        if fits:
            sink.prepare(make_pg_lane(), plan)
            return
        with pytest.raises(Fatal, match="'_cdc_seq_1'") as refused:
            sink.prepare(make_pg_lane(), plan)
        assert 'TEXT COLLATE "C"' in refused.value.next_step
