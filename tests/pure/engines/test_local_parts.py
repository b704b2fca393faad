"""Parts of a batch share no key, and together are the batch."""

from itertools import chain
from random import Random

import pyarrow as pa
import pytest

from adapters.sinks.postgres.scd2 import split_by_key
from replicator.testing.contract import SEED


def batch(rng, rows):
    """Few keys have most of the rows, as where some rows of a table are changed all the time."""
    keys = [(int(rng.paretovariate(0.6)) % 50, rng.choice(["a", "b", ""])) for _ in range(rows)]
    return pa.table({"id": [i for i, _ in keys], "kind": [k for _, k in keys], "place": list(range(rows))})


@pytest.mark.parametrize("keys", [["id"], ["id", "kind"]])
def test_each_key_is_in_one_part_and_rows_keep_their_order(keys):
    rng = Random(SEED)
    for _ in range(50):
        rows, size = batch(rng, rng.randrange(1, 400)), rng.randrange(1, 60)
        parts = split_by_key(rows, keys, size)
        places = [part["place"].to_pylist() for part in parts]
        assert sorted(chain.from_iterable(places)) == list(range(rows.num_rows)) and all(p == sorted(p) for p in places)
        seen = [{tuple(row[k] for k in keys) for row in part.to_pylist()} for part in parts]
        assert sum(map(len, seen)) == len(set().union(*seen))
        assert [len(keys) for keys in seen] == sorted(len(keys) for keys in seen)


def test_parts_have_about_the_given_size():
    rows = pa.table({"id": list(range(1000))})
    assert [part.num_rows for part in split_by_key(rows, ["id"], 250)] == [250] * 4
    assert len(split_by_key(rows, ["id"], 501)) == 1
