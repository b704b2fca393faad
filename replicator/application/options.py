"""The figures that bound the application: memory, patience and pace. Wiring sets them from the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Times in seconds, sizes in bytes.

    `handover_bytes`: what gathers before one sink makes the source wait. `drain`: how long workers may go on after a stop.
    `state_patience`: how long a lane's position is waited for before the stream goes on without that lane; `new_patience`:
    the same for lanes of tables that turn up in the stream.
    `reject_patience`: how long the dead-letter store may be away. `report_every`: pace of lag, commits to the source, and
    positions of lanes that had nothing to write. `catch_up_offsets`: offsets per partition and read. `catch_up_turn`:
    how long lanes catch up between two batches. `hold_idle`: after so long without a record half a key change is applied
    as it is; polls are not counted, since a busy machine makes many while a record is on its way. `hold_batches`: the
    same after so many batches with records, `hold_bytes`: by size. `longest_delay`: the cap of every backoff, which
    begins with `first_delay`. `max_rejects`: None accepts any number. `publish_every`: the least time between two of
    what a sink publishes beside its commits. `gather`: how long a worker waits for its slot to be full before it takes
    what is in it; not at all where what is new is to be seen soon. `row_patience`: how long rows are tried again that a
    target refuses for what other rows hold. `row_retry`: after so long, also when no other lane has committed anything.
    """

    handover_bytes: int = 64 << 20
    drain: float = 30.0
    state_patience: float = 5.0
    new_patience: float = 0.25
    reject_patience: float = 60.0
    report_every: float = 5.0
    catch_up_offsets: int = 50_000
    catch_up_turn: float = 0.5
    hold_idle: float = 5.0
    hold_batches: int = 16
    hold_bytes: int = 64 << 20
    first_delay: float = 0.1
    longest_delay: float = 5.0
    max_rejects: int | None = None
    publish_every: float = 1.0
    gather: float = 0.0
    row_patience: float = 60.0
    row_retry: float = 1.0
