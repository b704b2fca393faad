"""The work of a refresh, by the inputs that the last one read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicator.domain.projection import (
    MAX_GROUPS,
    GroupKey,
    Groups,
    InputVersion,
    Projection,
    ProjectionInput,
    RefreshRecord,
    plan_refresh,
)

USERS = ProjectionInput("users", "lake", "users", GroupKey("city", "city"))
CITIES = ProjectionInput("cities", "lake", "cities", GroupKey("name", "name"))
RATES = ProjectionInput("rates", "lake", "rates")
PROJECTION = Projection("gold", "SELECT 1", (USERS, CITIES, RATES), "lake", "gold", partition_by="city", fingerprint="one")
READS = {"users": InputVersion("u", 3), "cities": InputVersion("c", 1), "rates": InputVersion("r", 7)}
LAST = RefreshRecord("run", "one", READS, "full", "2024-01-01T00:00:00+00:00")


def now(**versions: int) -> dict[str, InputVersion]:
    return {name: replace(read, version=versions.get(name, read.version)) for name, read in READS.items()}


def make_group_reader(groups: dict[str, Groups | None]):
    def find_affected_groups(one: ProjectionInput, since: int, until: int) -> Groups | None:
        assert since < until
        return groups[one.name]

    return find_affected_groups


def nothing(*_: object) -> Groups | None:
    raise AssertionError("nothing is to be compared")


def test_unchanged_inputs_need_no_refresh():
    assert plan_refresh(PROJECTION, LAST, now(), nothing) is None


def test_affected_groups_of_all_inputs_are_joined():
    found = plan_refresh(
        PROJECTION,
        LAST,
        now(users=4, cities=2),
        make_group_reader({"users": frozenset({"a", None}), "cities": frozenset("b")}),
    )
    assert found.groups == frozenset({"a", "b", None})
    assert found.kind == "groups"
    found = plan_refresh(PROJECTION, LAST, now(users=4), make_group_reader({"users": frozenset()}))
    assert (found.groups, found.kind) == (frozenset(), "none")
    # Rows of an input that every group depends on it are the same.
    assert plan_refresh(PROJECTION, LAST, now(rates=8), make_group_reader({"rates": frozenset()})).groups == frozenset()


@pytest.mark.parametrize(
    ("last", "reads", "groups", "why"),
    [
        (None, now(), {}, "no earlier refresh"),
        (replace(LAST, fingerprint="another"), now(), {}, "was changed"),
        (replace(LAST, reads={"users": READS["users"]}), now(), {}, "was changed"),
        (LAST, now(users=2), {}, "users was created again"),
        (LAST, {**now(users=9), "users": InputVersion("other", 9)}, {}, "users was created again"),
        (LAST, now(users=4, rates=8), {"users": frozenset("a"), "rates": None}, "every group depends on it"),
        (LAST, now(users=4), {"users": None}, "the affected groups are unknown"),
        (LAST, now(users=4), {"users": frozenset(range(MAX_GROUPS + 1))}, "groups have changed"),
    ],
)
def test_full_refresh_has_a_reason(last, reads, groups, why):
    found = plan_refresh(PROJECTION, last, reads, make_group_reader(groups))
    assert (found.groups, found.kind) == (None, "full")
    assert why in found.reason


def test_refresh_record_is_read_back_unchanged():
    assert RefreshRecord.from_json(LAST.to_json()) == LAST
