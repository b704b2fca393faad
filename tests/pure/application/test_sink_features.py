"""Operations that need a feature of the sink."""

import pytest

from replicator.application.operations.table_swap import swap_in_sink
from replicator.application.sink_features import get_reader, open_comparison, read_schema_versions
from replicator.domain.errors import ConfigProblem
from replicator.testing.delivery import make_lane
from replicator.testing.fakes import FakeSink, FakeStore

LANE = make_lane("scd1")


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (get_reader, "cannot be queried"),
        (lambda sink: open_comparison(sink, LANE), "cannot be compared"),
        (lambda sink: swap_in_sink(sink, LANE, LANE, None), "cannot swap"),
    ],
)
def test_missing_feature_is_reported(use, said):
    with pytest.raises(ConfigProblem, match=said) as refused:
        use(FakeSink(FakeStore()))
    assert refused.value.next_step


def test_sink_without_schema_versions_has_none():
    assert read_schema_versions(FakeSink(FakeStore()), LANE) == ()
