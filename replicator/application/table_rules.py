"""What the configuration says of tables, in the form the application uses. Wiring builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replicator.ports.frames import Lane

EVENT_LOG_POLICY = "event_log"
CONTINUE, HOLD_KEY, STOP_LANE = "continue", "hold_key", "stop_lane"


@dataclass(frozen=True, slots=True)
class TableRules:
    """One configured table.

    `lanes`: its targets, event logs left out. `keys`: the configured key columns, empty when they are learnt.
    `event_logs`: the names of the event-log sinks its topics go to. `on_reject`: what becomes of the table when a record of
    it cannot be used. `private`: columns of it are masked in everything that is stored.
    """

    lanes: tuple[Lane, ...]
    keys: tuple[str, ...] = ()
    event_logs: frozenset[str] = frozenset()
    on_reject: str = CONTINUE
    private: bool = False


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """The lanes of a source are held together at its transactions, or at least it is said up to which they are complete.

    `topic`: where it tells their ends. `max_bytes`: a transaction of which more is held back becomes visible in parts.
    `patience`: seconds without anything new of the transaction that is waited for, after which the same happens.
    Not `together`: nothing is held back, and only said up to which transaction the lanes are complete.
    """

    topic: str
    max_bytes: int = 64 << 20
    patience: float = 60.0
    together: bool = True


RulesFor = Callable[[str], TableRules | None]
"""The rules of a table of one source by its database-side name; None when no entry of the configuration matches it. Pure."""


def make_event_log_lane(pipeline: str, source: str, sink: str, config_line: str = "") -> Lane:
    """The lane of a source's event log in one sink: every record of the source, whatever table it is of."""
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
