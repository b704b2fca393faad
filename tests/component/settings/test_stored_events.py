"""Events of an outbox in the event store: the options of such an entry, and their effects."""

from __future__ import annotations

import warnings
from datetime import timedelta

import pytest

from adapters.observability.prometheus import PrometheusTelemetry
from replicator.application.lane_runs import LaneRuns
from replicator.domain.events import EventLimits
from replicator.domain.policy.plan import Counts
from replicator.domain.position import Position
from replicator.settings.schema import to_plain_options
from replicator.wiring import adapters, build, projections
from replicator.wiring.components import ConfiguredComponents

CONFIG = """\
pipeline: shop
sources:
  outbox: {format: debezium_outbox, transport: archive, path: ./archive}
  rows: {format: debezium_json, transport: archive, path: ./rows}
sinks:
  lake: {kind: delta, path: ./lake}
event_store: {path: ./events, compact_every: 7}
dead_letters: {path: ./letters}
tables:
  - match: outbox.event.*
    source: outbox
    to: [{sink: lake}, {sink: event_store}]
  - match: public.*
    source: rows
    to: [{sink: lake}]
"""
STORE = "event_store: {path: ./events, compact_every: 7}\n"
ENTRY = "{sink: event_store}"


@pytest.fixture
def change(folder):
    def change_config(old: str = "", new: str = "", **more: object):
        assert not old or CONFIG.count(old) == 1
        folder.write(CONFIG.replace(old, new) if old else CONFIG)
        return folder

    return change_config


def test_event_store_is_a_sink_named_event_store(change):
    loaded = change().load()
    lake, lane = loaded.settings.resolve_lanes("outbox.event.order")
    assert (lane.sink, lane.into, lane.policy, lane.is_mirror, lake.is_mirror) == (
        "event_store",
        "order",
        "append",
        False,
        True,
    )
    options = to_plain_options(loaded.settings.sinks["event_store"].store)
    assert options["path"] == str(loaded.root / "events") and options["compact_every"] == 7
    assert adapters.build_event_limits(loaded) == EventLimits(16 * 1024 * 1024, entries=4096, depth=64)
    assert [one.id for one in build.build_rules_for(loaded, "outbox")("outbox.event.order").lanes] == [
        "lake.order",
        "event_store.order",
    ]


def test_redacted_config_omits_the_implicit_sink(change):
    loaded = change(STORE, "event_store: {dsn: 'postgresql://u:s3cr3t@h/d'}\n").load()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = loaded.to_redacted()
    assert set(shown["sinks"]) == {"lake"} and "s3cr3t" not in repr((shown, loaded.settings))


def test_unused_event_store_adds_no_sink(change):
    assert set(change(f", {ENTRY}", "").load().settings.sinks) == {"lake"}


def test_configured_sink_named_event_store_takes_precedence(change):
    lake = "  lake: {kind: delta, path: ./lake}\n"
    loaded = change(lake, lake + "  event_store: {kind: delta, path: ./other}\n").load()
    assert loaded.settings.resolve_lanes("outbox.event.order")[1].is_mirror


def test_defaults_do_not_apply_to_the_event_store(change):
    defaults = "defaults: {policy: scd1, tombstone_retention: 1 days, deletes: soft}\ntables:\n"
    lake, lane = change("tables:\n", defaults).load().settings.resolve_lanes("outbox.event.order")
    assert lake.retention == timedelta(days=1) and lake.row_transforms.soft_deletes
    assert (lane.policy, lane.retention, bool(lane.row_transforms), lane.watermark) == ("append", None, False, None)


def test_events_can_be_filtered(change):
    entry = "{sink: event_store, where: \"type = 'OrderPlaced'\"}"
    lane = change(ENTRY, entry).load().settings.resolve_lanes("outbox.event.order")[1]
    assert lane.row_transforms.description == ("where type = 'OrderPlaced'",) and not lane.row_transforms.rows_leave


def test_projections_of_the_store_follow_its_lanes(change):
    """A commit of any of these lanes makes them due."""
    loaded = change().load()
    lanes = LaneRuns(PrometheusTelemetry())
    runs = [lanes.add(lane) for lane in ConfiguredComponents(loaded).resolve_lanes("outbox.event.order")]
    before = projections._list_committed(lanes)
    assert set(before) == {"lake.order", "event_store.order", "event_store"}
    lanes.record_commit(runs[0], Position(), Counts(), None)
    assert projections._list_committed(lanes)["event_store"] == before["event_store"]
    lanes.record_commit(runs[1], Position(), Counts(), None)
    assert projections._list_committed(lanes)["event_store"] != before["event_store"]


WRONG = [
    (STORE, "", "unknown_sink", "add one, for example event_store"),
    (
        "    source: rows\n    to: [{sink: lake}]",
        "    source: rows\n    to: [{sink: event_store}]",
        "inapplicable",
        "outbox",
    ),
    (ENTRY, "{sink: event_store, policy: scd2}", "inapplicable", "remove it"),
    (ENTRY, "{sink: event_store, deletes: soft}", "inapplicable", "remove it"),
    (ENTRY, "{sink: event_store, partition_by: [id]}", "inapplicable", "remove it"),
    (ENTRY, "{sink: event_store, columns: {payload: {rename: body}}}", "inapplicable", "remove it"),
    ("    source: outbox\n", "    source: outbox\n    sequence_by: [event_offset]\n", "inapplicable", "other targets"),
    ("    source: outbox\n", "    source: outbox\n    except_column_list: [payload]\n", "inapplicable", "other targets"),
    (
        "    source: outbox\n",
        "    source: outbox\n    columns: {payload: {rename: body}}\n",
        "inapplicable",
        "other targets",
    ),
    ("sinks:\n", "engine: spark\nsinks:\n", None, ""),
]


@pytest.mark.parametrize(("old", "new", "code", "message"), WRONG)
def test_invalid_entry_is_reported(change, old, new, code, message):
    if code is None:
        change(old, new).load()
        return
    found = change(old, new).only()
    assert found.code == code and message in f"{found.message} {found.suggestion}"


def test_event_store_in_an_object_store_is_refused_on_spark(change):
    folder = change(STORE, "engine: spark\nevent_store: {path: 's3://bucket/events'}\n")
    assert folder.only().code == "not_yet_supported"
    folder.write(folder.file.read_text().replace("engine: spark", "engine: local"))
    assert folder.load().settings.sinks["event_store"].store.adapter == "delta"
