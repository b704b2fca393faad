"""The configuration of tables, in the form that the application uses. Wiring builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replicator.ports.frames import Lane

EVENT_LOG_POLICY = "event_log"
CONTINUE, HOLD_KEY, STOP_LANE = "continue", "hold_key", "stop_lane"


@dataclass(frozen=True, slots=True)
class TableRules:
    """One configured table.

    - `lanes`: its targets, without event logs.
    - `keys`: the configured key columns; empty if they are learnt.
    - `event_logs`: the event-log sinks of its topics.
    - `on_reject`: the reaction to records that cannot be used.
    - `private`: some columns are masked in every stored record.
    """

    lanes: tuple[Lane, ...]
    keys: tuple[str, ...] = ()
    event_logs: frozenset[str] = frozenset()
    on_reject: str = CONTINUE
    private: bool = False


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """The rules by which the lanes of a source follow its transactions.

    - `topic`: the topic with the end marks.
    - `max_bytes`: a transaction with more held bytes becomes visible in parts.
    - `patience`: after so many seconds without news of the transaction that is waited for, likewise.
    - `together`: False: nothing is held back. Only the completeness watermark is published.
    """

    topic: str
    max_bytes: int = 64 << 20
    patience: float = 60.0
    together: bool = True


RulesFor = Callable[[str], TableRules | None]
"""The rules of a source's table, by its name in the database; None if no entry of the configuration matches. Pure."""


def make_event_log_lane(pipeline: str, source: str, sink: str, config_line: str = "") -> Lane:
    """The lane of a source's event log in one sink. It gets every record of the source, whatever its table."""
    return Lane(
        id=f"{sink}.{source}",
        pipeline=pipeline,
        source=source,
        table="",
        sink=sink,
        into=source,
        policy=EVENT_LOG_POLICY,
        config_line=config_line,
    )
