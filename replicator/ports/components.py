"""The parts and the rules of a configured pipeline, in the form that the application uses. Wiring builds them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, Literal, Protocol

from replicator.domain.event_log import CheckpointSchedule
from replicator.domain.expr import Expr
from replicator.domain.policy import EVENT_LOG_POLICY
from replicator.domain.transform.columns import Mask

from .decoder import Decoder
from .engine import Engine
from .frames import Lane
from .runtime import ShowProgress
from .sink import Sink
from .source import Source
from .stores import DeadLetters, Register

CONTINUE, HOLD_KEY, STOP_LANE = "continue", "hold_key", "stop_lane"


@dataclass(frozen=True, slots=True)
class TableRules:
    """One configured table.

    - `lanes`: its targets, without event logs.
    - `keys`: the configured key columns; empty if they are learnt.
    - `event_logs`: the event-log sinks of its topics.
    - `on_reject`: the reaction to records that cannot be used.
    - `masks`: of the columns that are masked in every stored record.
    """

    lanes: tuple[Lane, ...]
    keys: tuple[str, ...] = ()
    event_logs: frozenset[str] = frozenset()
    on_reject: str = CONTINUE
    masks: Mapping[str, Mask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """The rules by which the lanes of a source follow its transactions.

    - `topic`: the topic with the end marks.
    - `max_bytes`: a transaction with more held bytes becomes visible in parts.
    - `patience`: seconds without news of a pending transaction until it becomes visible in parts.
    - `together`: if false, nothing is held back. Only the completeness watermark is published.
    """

    topic: str
    max_bytes: int = 64 << 20
    patience: float = 60.0
    together: bool = True


RulesFor = Callable[[str], TableRules | None]
"""The rules of a source's table, by its name in the database; None if no entry of the configuration matches. Pure."""


@dataclass(frozen=True, slots=True)
class SourceRules:
    """One configured source.

    - `tables`: those that an entry names exactly. `rules_for`: of any table. `event_logs`: the lanes of its event logs.
    - `transactions`: None if its lanes do not follow transactions.
    - `has_backfills`: its tables can also be read from their database.
    - `has_tables`: some entry of `tables` is of this source.
    - `lake`: the folder of the table that it reads, if it reads one.
    - `backfill_folder`, `kept_folder`: with rows that a backfill read, and those that it compares its table with.
    """

    tables: frozenset[str]
    rules_for: RulesFor
    event_logs: tuple[Lane, ...]
    transactions: TransactionRules | None
    has_backfills: bool
    has_tables: bool
    lake: str
    backfill_folder: Path
    kept_folder: Path


@dataclass(frozen=True, slots=True)
class SinkRules:
    """One configured sink.

    - `config_line`: its `file:line`, for messages.
    - `catalog_of`: the engine in whose catalog its targets have names; None: they have none.
    - `schema`: of the database in which its tables are.
    - `has_lanes`: some table goes there.
    - `log_folder`: of an event log on this machine. `is_log_in_database`: one whose records are rows, not files of a lake.
    - `is_lake`: a table in it has the types of checkpoints.
    - `checkpoints`, `retention`: of an event log; None: no checkpoints are scheduled, all records are kept.
    """

    kind: str
    config_line: str
    catalog_of: str | None
    schema: str | None
    has_lanes: bool
    is_lake: bool = False
    is_event_log: bool = False
    log_folder: str | None = None
    is_log_in_database: bool = False
    checkpoints: CheckpointSchedule | None = None
    retention: timedelta | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterStoreKind:
    """The kind of the dead-letter store, and its topic if it is one."""

    kind: str
    topic: str | None


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """A target `into`, next to that of the lane `lane`, to build from the event log.

    - `policy`: another policy than that of the lane.
    - `since`, `until`: only records in this period (times at the source, ISO text with a zone), if they have a
      time.
    - `below`: only records below this position (as JSON).
    """

    lane: Lane
    into: str
    policy: str | None = None
    since: str | None = None
    until: str | None = None
    below: dict[str, dict[str, int]] | None = None
    target_digest: str = ""
    """A digest of the config, for a temporary target, which no lane writes."""

    @property
    def id(self) -> str:
        """The id of the lane that builds it."""
        return f"{self.lane.sink}.{self.into}"

    @property
    def has_own_dead_letters(self) -> bool:
        """True if its rejected records are stored separately."""
        return bool(self.target_digest)


SinkUse = Literal["read", "write", "rewrite", "drop"]
"""For what a command opens a sink. To read a target or a lane, any process will do. To write, it is the sink of the
pipeline's engine; to rewrite or drop a target, only where no other can."""


class Components(Protocol):
    """Builds the parts of one configured pipeline by the names of its sources and sinks. The caller closes each part.

    - `engine`: the name of its engine. `folder`: its files on this machine.
    - `register`: what the pipeline has read so far. `erasures`: the folder of the erasure list.
    """

    pipeline: str
    engine: str
    folder: Path
    register: Register
    sources: Mapping[str, SourceRules]
    sinks: Mapping[str, SinkRules]
    dead_letters: DeadLetterStoreKind
    erasures: Path

    def resolve_lanes(self, table: str) -> Sequence[Lane]:
        """The lanes of a source table in any source, by the entry that fits it best. Empty without one."""

    def list_configured_targets(self, table: str) -> Mapping[str, str]:
        """By id, the targets that entries give the table or would give it, with their config lines."""

    def digest(self, lane: Lane, *, with_target: bool = False) -> str:
        """A digest of all settings that decide the lane's rows; `with_target`: and its target's layout and metadata."""

    def find_log(self, table: str) -> Lane:
        """The lane of the first event log of a table, those in a lake first. ConfigProblem without one."""

    def open_log(self, log: Lane, topics: Collection[str] = ()) -> Any:
        """The event log as a source in this process; of these topics, if it has any of them."""

    def use_log(self, request: RebuildRequest, topics: Collection[str] = (), *, is_plain: bool = False) -> Components:
        """The pipeline of one lane that builds the target from the event log of its table. It has its own state.

        `topics`: those of the table's records, if known. `is_plain`: without the target's physical layout, and tombstones
        are kept forever.
        """

    def use_lake(self, sink: str, folder: Path) -> Components:
        """The same in this process, with `sink`, the state and the dead letters in `folder`."""

    def parse_condition(self, text: str) -> Expr:
        """A condition on columns of a source, as in the config. ConfigProblem if it is none."""

    def use_records(self, lane: Lane, folder: Path, into: str, where: str = "") -> Components:
        """The pipeline that makes the current rows of the lane's table from the records in `folder`/records, an archive.
        The target `into`, its lake, the state and the dead letters are in `folder`."""

    def catch_up(
        self, stop: Event | None = None, *, in_batches: bool = False, show_progress: ShowProgress = nullcontext
    ) -> dict[str, int]:
        """Run the pipeline until it has caught up, or until `stop` is set. `in_batches`: with as few commits as memory
        allows. Returns the counts of its records: `records` (read), `applied` and `rejected`. Fenced while another
        instance runs; the error of a lane or source that stopped."""

    def use_local(self) -> Components:
        """The same with sources and engine in this process, for commands that only read. Unchanged if that cannot be."""

    def build_engine(self) -> Engine[Any]:
        """The engine."""

    def build_decoder(self, source: str, *, with_erased: bool = False) -> Decoder:
        """The decoder of a source's records, without those of erased rows unless `with_erased`. ConfigProblem if erased
        rows are of a source that the config has no more."""

    def open_source(self, name: str) -> Source[Any]:
        """The source, for the engine."""

    def open_sink(self, name: str, use: SinkUse = "read") -> Sink[Any]:
        """The sink. ConfigProblem if the engine has none of its kind."""

    def open_dead_letters(self, folder: Path | None = None) -> DeadLetters:
        """The dead-letter store of the pipeline, or that of a rebuild in this folder."""

    def ask_daemon(self) -> dict[str, Any] | None:
        """The status of the running daemon. None if none runs."""

    def command_daemon(self, action: str, lane: str, argument: str) -> None:
        """Send a lane command to the running daemon. Raises the daemon's error."""


def make_event_log_lane(pipeline: str, source: str, sink: str, config_line: str = "") -> Lane:
    """The lane of a source's event log in one sink. It gets every record of the source, for all tables."""
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
