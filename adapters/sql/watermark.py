"""Finds changes that are too late for a watermark, as SQL over changes in arrival order."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.domain.change import OP, PARTITION, TOPIC, TS, Op
from replicator.domain.policy.late_changes import get_grace, make_watermark_reject
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.position import TopicPartition

from .dialect import Dialect
from .fold import ARRIVAL

LATE = "_late"
"""The reason why a change is late; null when it is not."""

MARK = "_mark"
EVENT, WATERMARK = "{event}", "{watermark}"


def late_select(
    plan: ApplyPlan, dialect: Dialect, changes: str, *, reached: Mapping[TopicPartition, int], lane: str, micros: str = ""
) -> str:
    """Adds `_mark`, the watermark when each change arrived, and `_late`.

    The relation holds `_i`, `_op`, `_ts`, `_topic` and `_partition`. Times are microseconds since 1970.
    `micros` converts `_ts` where it is not a number. `reached`: `LaneState.max_event_time`, for changes before
    the relation.
    """
    q = dialect.quote_name
    moment = micros or q(TS)
    newest = f"CASE WHEN {_counts_condition(dialect)} THEN {moment} END"
    before = f"ORDER BY {q(ARRIVAL)} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    mark = f"max({newest}) OVER (PARTITION BY {q(TOPIC)}, {q(PARTITION)} {before})"
    if reached:
        mark = f"GREATEST({mark}, {_stored_watermark(dialect, reached)})"
    marked = f"SELECT *, {mark} - {get_grace(plan)} AS {q(MARK)} FROM {changes}"
    is_late = f"{_counts_condition(dialect)} AND {moment} < {q(MARK)}"
    why = _reject_expression(dialect, lane, {EVENT: moment, WATERMARK: q(MARK)})
    return f"SELECT *, CASE WHEN {is_late} THEN {why} END AS {q(LATE)}\nFROM ({marked})"


def _counts_condition(dialect: Dialect) -> str:
    """The watermark applies to the change. A snapshot row has the time of reading, not of a change, so it is
    exempt."""
    return f"{dialect.quote_name(OP)} <> {dialect.text(Op.READ)}"


def _stored_watermark(dialect: Dialect, reached: Mapping[TopicPartition, int]) -> str:
    q = dialect.quote_name
    whens = [
        f"WHEN {q(TOPIC)} = {dialect.text(at.topic)} AND {q(PARTITION)} = {at.partition} THEN CAST({micros} AS BIGINT)"
        for at, micros in sorted(reached.items())
    ]
    return f"CASE {' '.join(whens)} END"


def _reject_expression(dialect: Dialect, lane: str, times: Mapping[str, str]) -> str:
    """The reject's text as an expression, with the times in place of their placeholders."""
    parts, rest = [], str(make_watermark_reject(EVENT, WATERMARK, lane))
    for name, micros in times.items():
        text, rest = rest.split(name, 1)
        parts += [dialect.text(text), dialect.time_template.format(micros=micros)]
    return " || ".join([*parts, dialect.text(rest)])
