"""Faults of a port reach the features of a sink."""

from dataclasses import replace

import pytest

from replicator.domain.errors import Retryable
from replicator.testing.delivery import make_lane
from replicator.testing.fakes import FailAfterApply, FailBefore, FakeSink, FakeStore, Faulty

LANE = make_lane("scd1")


class HurriedSink(FakeSink):
    hurried = 0

    @property
    def features(self):
        return replace(super().features, hurry=self.hurry)

    def hurry(self):
        self.hurried += 1


def test_faults_reach_a_feature_that_is_a_method():
    sink = HurriedSink(FakeStore())
    faulty = Faulty(sink, {"hurry": [FailBefore(), FailAfterApply()]})
    for done in (0, 1):
        with pytest.raises(Retryable):
            faulty.features.hurry()
        assert sink.hurried == done
    faulty.features.hurry()
    assert sink.hurried == 2 and faulty.calls == ["hurry"] * 3


def test_faults_reach_an_object_of_the_features():
    faulty = Faulty(HurriedSink(FakeStore()), {"list_artifacts": [FailBefore()]})
    with pytest.raises(Retryable):
        faulty.features.removal.list_artifacts(LANE)
    assert faulty.features.removal.list_artifacts(LANE) == []


def test_features_that_are_no_methods_are_unchanged():
    sink = HurriedSink(FakeStore())
    found = Faulty(sink).features
    assert found.policies == sink.features.policies and found.atomic_across_lanes and found.swap is None


def test_faults_of_an_unknown_method_are_refused():
    with pytest.raises(AssertionError, match="no method compact"):
        Faulty(HurriedSink(FakeStore())).schedule("compact", FailBefore())
