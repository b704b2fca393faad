"""Records of an erased key are left out, wherever they name it."""

from datetime import UTC, datetime

import pytest
from support.debezium_events import ID, TOPIC, column, event, key, raw

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.application.quarantine.erasure_filter import ERASED_KIND, filter_erased
from replicator.domain.erasures import Erasure, ErasureHashes

COLUMNS = [ID, column("name", "string")]
HASHES = ErasureHashes(b"secret")
ERASED = Erasure(
    "shop", "public.t", ("id",), HASHES.hash_key("shop", "public.t", ("id",), ("1",)), datetime(2026, 1, 1, tzinfo=UTC),
    topics=frozenset({TOPIC}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "headers"),
    [
        ({"after": {"id": 1, "name": "a"}}, {}),
        ({"op": "d", "before": {"id": 1, "name": "a"}}, {}),
        ({"op": "u", "before": {"id": 1, "name": "a"}, "after": {"id": 2, "name": "a"}}, {}),
        ({"after": {"id": 2, "name": "a"}}, {"__debezium.oldkey": key(id=1)}),
    ],
    ids=["row", "image of a delete", "image before an update", "old key of a key change"],
)
def test_record_of_an_erased_key_is_ignored(change, headers):
    others = event(COLUMNS, after={"id": 3, "name": "b"})
    records = raw([event(COLUMNS, **change), others], [key(id=2), key(id=3)], headers={0: headers} if headers else {})
    routed = filter_erased(DebeziumJsonDecoder({}), HASHES, [ERASED]).route(records)
    assert routed["ignored"].to_pylist() == [ERASED_KIND, None]
    assert routed["table"].to_pylist() == [None, "public.t"]
