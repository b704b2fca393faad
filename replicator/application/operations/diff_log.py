"""Compares a target with the event log of its table: all rows, also closed versions and appended changes."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime

import pyarrow as pa

from replicator.application.sink_features import get_reader, open_comparison
from replicator.domain.differences import LaneDiff
from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.domain.policy import CHANGE_POLICIES, VERSION_POLICIES
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID, START_AT
from replicator.domain.position import Position
from replicator.domain.read_query import InvalidReadQuery
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.reads import TargetSnapshot
from replicator.ports.runtime import ShowLine

from .as_of import AsOf, read_rows_as_of, resolve_as_of
from .checkpoint import list_topics
from .diff_runs import open_work_folder
from .row_diff import compare_rows

ASK_EVERY = 0.5


def compare_with_log(parts: Components, lane: Lane, report: ShowLine, *, patience: float, show: int) -> LaneDiff:
    """Compare a target with what the event log gives at the position of the target's newest commit.

    The policy and the config are those of the lane. ConfigProblem without an event log, and EnvironmentProblem if the log
    does not reach the position within `patience` seconds. Errors of `read_rows_as_of`.
    """
    begun, started = datetime.now(UTC), time.monotonic()
    parts.find_log(lane.table)
    with closing(parts.open_sink(lane.sink)) as sink, open_comparison(sink, lane) as target:
        if target is None:
            raise Fatal(f"Lane {lane.id} has no target yet.", next_step="Start the daemon, and repeat the command.")
        at = _await_log(parts, lane, target, patience)
        report(f"{lane.id}: applying the event log up to {at}")
        with open_work_folder(parts.folder) as folder:
            expected = read_rows_as_of(
                parts, lane, at, lambda sink, name: get_reader(sink).read(name), tell=report, folder=folder
            )
        actual = target.read_all()
        names = [name for name in expected.column_names if name != CDC_APPLIED_AT and name in actual.column_names]
        converted = pa.table({name: target.convert(name, expected[name].combine_chunks()) for name in names})
        diff = compare_rows(converted, actual.select(names), find_row_keys(parts, lane))
        others = sorted({*expected.column_names} ^ {*actual.column_names})
        return LaneDiff(
            lane=lane.id,
            table=lane.table,
            against="log",
            position=(str(at), str(at)),
            commit=target.commit,
            rows=expected.num_rows,
            missing=len(diff.missing),
            extra=len(diff.extra),
            different=len(diff.different),
            differences=tuple(diff.list_differences(show)),
            not_compared=tuple(f"{name} is not compared: only one side has this column." for name in others),
            begun=begun.isoformat(),
            seconds=round(time.monotonic() - started, 3),
        )


def find_row_keys(parts: Components, lane: Lane) -> list[str]:
    """The columns that identify a row of the target."""
    if lane.policy in CHANGE_POLICIES:
        return [EVENT_ID]
    known = parts.register.load(lane.source).keys.get(lane.table, ())
    keys = [lane.row_transforms.column_transforms.get_new_name(name) for name in lane.keys or known]
    return [*keys, START_AT] if lane.policy in VERSION_POLICIES else keys


def _await_log(parts: Components, lane: Lane, target: TargetSnapshot, patience: float) -> AsOf:
    topics, deadline = list_topics(parts, lane), time.monotonic() + patience
    position = Position({place: offset for place, offset in target.position.items() if place.topic in topics and offset})
    while True:
        try:
            return resolve_as_of(parts, lane, position)
        except InvalidReadQuery as error:
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"The event log of {lane.table} does not reach the position of {lane.id} within {patience:.0f} s: "
                    f"{error.sentence}.",
                    next_step="See if the lane of the event log runs: `replicator status`.",
                ) from error
        time.sleep(ASK_EVERY)
