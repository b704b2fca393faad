"""Builds the adapters that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from replicator.application.backfilled import Backfilled
from replicator.application.erasures import Erased, ErasureList
from replicator.application.withholding import withholding
from replicator.domain.errors import ConfigProblem
from replicator.domain.events import EventLimits
from replicator.domain.out_of_range import OutOfRange, Said, reads_of
from replicator.domain.patterns import is_exact
from replicator.ports.dead_letters import DeadLetters
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane
from replicator.ports.sink import Sink
from replicator.ports.source import Source
from replicator.settings import LaneSettings, Loaded
from replicator.settings.fields import timespan
from replicator.settings.renamed import private_columns
from replicator.settings.schema import plain_options
from replicator.settings.sinks import EventStoreSinkSettings, PluginDeadLetterSettings
from replicator.settings.source_parts import OUTBOX
from replicator.settings.sources import FORMATS
from replicator.settings.tables import PolicyKeys, TableSettings

from .plugins import load, names

LOCAL = "local"
STORES = "replicator.event_store_lanes"
FOR_DECODERS = frozenset(
    {
        *("operation_column", "sequence_columns", "operations", "csv", "outbox", "flattened", "decimals", "registry"),
        "replica_identity",
    }
)
"""Keys of a source that are its decoder's."""
BACKFILLED = frozenset({"debezium_json", "debezium_avro"})
"""Formats that put the changes of a table in an order in which rows that are read have a place."""
WITH_OUT_OF_RANGE = frozenset(FORMATS) - {OUTBOX}
"""Formats whose decoders are told of dates and times that no target can hold."""
WITH_TRUNCATES = frozenset({"rows"})
"""Formats in which a truncate is a row, which `apply_as_truncates` tells from others."""
OF_THE_CORE = frozenset(
    {"kind", "engines", "format", "transport", "database", "connect", "transactions", "patience", "snapshots", "retention"}
)
NOT_FOR_ADAPTERS = OF_THE_CORE | FOR_DECODERS


OF_FILES = frozenset({"archive", "files"})
"""Transports whose lines are bounded before they are read."""


def source(loaded: Loaded, name: str) -> Source[Any]:
    """The source `name`, by its transport."""
    settings = loaded.settings.sources[name]
    factory = _for_engine(loaded, "replicator.sources", settings.transport, ("sources", name, "transport"))
    size = whole_bytes(loaded) if settings.is_whole else batch_bytes(loaded)
    more = {**kept(loaded, name), "batch_bytes": size, **input_limits(loaded, name), **_of_engine(loaded)}
    made: Source[Any] = _built(factory, {**options(settings), **more})
    return with_backfills(loaded, name, made, size) if has_backfills(loaded, name) else made


def input_limits(loaded: Loaded, name: str) -> dict[str, int]:
    """What the source `name` and its check are told of `limits` beside the size of a batch."""
    transport, limits = loaded.settings.sources[name].transport, loaded.settings.limits
    if transport == "snapshots":
        return {"memory": limits.memory}
    return {"message_bytes": limits.message_bytes} if transport in OF_FILES else {}


def reader_of_topics(loaded: Loaded, name: str, topics: Sequence[str]) -> Source[Any]:
    """A reader of `topics` from their beginning in this process, by the broker and the options of the source `name`."""
    settings = loaded.settings.sources[name]
    given = {**options(settings), "topics": list(topics), "start_from": "earliest", "batch_bytes": batch_bytes(loaded)}
    made: Source[Any] = _built(load("replicator.sources", settings.transport), given)
    return made


def has_backfills(loaded: Loaded, name: str) -> bool:
    """Whether tables of the source can be read whole, beside their changes."""
    settings = loaded.settings.sources[name]
    return settings.format in BACKFILLED and getattr(settings, "database", None) is not None


def with_backfills(loaded: Loaded, name: str, made: Source[Any], size: int) -> Source[Any]:
    """The source with what backfills wrote down; on an engine that has no journal of them, the source alone."""
    if not has_journal(loaded):
        return made
    options = {"state": str(backfills_folder(loaded, name)), "batch_bytes": size, **_of_engine(loaded)}
    return Backfilled(made, _built(load("replicator.sources", _journal(loaded)), options))


def has_journal(loaded: Loaded) -> bool:
    """Whether the pipeline's engine applies what backfills wrote down."""
    return _journal(loaded) in names("replicator.sources")


def _journal(loaded: Loaded) -> str:
    return "backfills" if loaded.settings.engine == LOCAL else f"backfills_{loaded.settings.engine}"


def backfills_folder(loaded: Loaded, name: str) -> Path:
    """Where backfills of the source's tables write rows down."""
    return state_folder(loaded) / "backfills" / name


def kept(loaded: Loaded, name: str) -> dict[str, Any]:
    """What a source is told that keeps something between runs: where, the key of its table, its declared and its private
    columns, and its times."""
    settings = loaded.settings.sources[name]
    table = settings.kept_table
    if table is None:
        return {}
    lanes = loaded.settings.lanes_for(table, name)
    keys = next((lane.keys for lane in lanes if lane.keys), ())
    declared = next((dict(lane.declared) for lane in lanes if lane.declared), None)
    columns = {} if declared is None else {"schema": declared}
    entry = loaded.settings.table_for(table, name)
    masks = private_columns(entry, loaded.settings.defaults) if entry is not None else {}
    every, overlap = getattr(settings, "every", None), getattr(settings, "overlap", None)
    pace: dict[str, Any] = {} if every is None else {"every": timespan(every).total_seconds()}
    if isinstance(overlap, str):
        pace["overlap"] = timespan(overlap)
    return {
        "keys": keys,
        "state": str(state_folder(loaded) / "kept" / name),
        **columns,
        **pace,
        **({"private": masks} if masks else {}),
    }


def state_folder(loaded: Loaded) -> Path:
    """Where the pipeline keeps what is of this machine only."""
    return Path(loaded.settings.state) / loaded.settings.pipeline


def locally(loaded: Loaded) -> Loaded:
    """The configuration with the local engine, for what only looks; as it is where a transport has no adapter for it."""
    used = [loaded.settings.sources[table.source] for table in loaded.settings.tables]
    of_engine = any(getattr(source, "table", None) for source in used)  # A catalog is the engine's.
    if of_engine or not {source.transport for source in used} <= set(names("replicator.sources")):
        return loaded
    return replace(loaded, settings=loaded.settings.model_copy(update={"engine": LOCAL}))


def erasures(loaded: Loaded) -> ErasureList:
    """The list of rows that were forgotten."""
    said = loaded.settings.erasures
    return ErasureList(state_folder(loaded) if said is None else Path(said))


def _for_engine(loaded: Loaded, group: str, name: str, at: tuple[str, ...]) -> Any:
    """The adapter `name` for the pipeline's engine, registered as `<name>_<engine>` unless the engine is the local one."""
    engine = loaded.settings.engine
    if engine == LOCAL:
        return load(group, name, f"{loaded.where(*at)}: ")
    if f"{name}_{engine}" not in names(group):
        there = sorted(n.removesuffix(f"_{engine}") for n in names(group) if n.endswith(f"_{engine}"))
        raise ConfigProblem(
            f"{loaded.where(*at)}: {name!r} does not run on the engine {engine!r}",
            next_step=f"On it there are: {', '.join(there)}. Or run it with `engine: local`.",
        )
    return load(group, f"{name}_{engine}", f"{loaded.where(*at)}: ")


def _of_engine(loaded: Loaded) -> dict[str, Any]:
    """What the adapters of an engine share: the options of its session, and the object stores that `stores` names."""
    engine = loaded.settings.engine
    if engine == LOCAL:
        return {}
    there = stores(loaded)
    return {engine: dict(getattr(loaded.settings, engine)), **({"stores": there} if there else {})}


def stores(loaded: Loaded) -> list[str]:
    """The schemes of the object stores that some sink, or a table that is read, is in. Files of other sources in one do not
    count: they are read without what the engine has for stores."""
    tables = (source for source in loaded.settings.sources.values() if source.transport == "delta")
    paths = (str(getattr(one, "path", None)) for one in (*loaded.settings.sinks.values(), *tables))
    return sorted({path.partition("://")[0] for path in paths if "://" in path})


def batch_bytes(loaded: Loaded) -> int:
    """The most bytes of input in one batch, so that what is on its way fits into `limits.memory`.

    At once there are the raw batch and its decoded form, and per sink one batch at work and one that waits.
    """
    limits = loaded.settings.limits
    return max(1, min(limits.batch_bytes, limits.memory // (2 + 2 * _sinks_in_use(loaded))))


def whole_bytes(loaded: Loaded) -> int:
    """The most bytes of input in a batch that is all there is (`mode: batch`): no other one is on its way beside it, raw, in
    its decoded form, and as each sink gets it."""
    return max(1, loaded.settings.limits.memory // (2 + _sinks_in_use(loaded)))


GATHER = 2
"""Batches that may wait for one sink: a sink that rewrites files is faster with fewer, larger batches."""


def waiting_bytes(loaded: Loaded, batch: int) -> int:
    """The most bytes that gather before one sink, so that `limits.memory` holds with batches of `batch` bytes."""
    sinks = _sinks_in_use(loaded)
    room = (loaded.settings.limits.memory - batch * (2 + sinks)) // max(1, sinks)
    return max(batch, min(GATHER * batch, room))


def gathering_bytes(loaded: Loaded, batch: int) -> int:
    """The same where more is to gather: a quarter of what batches on their way leave. A sink is at work on as much again,
    and what it makes of rows, which gather beside packed records, takes several times what they do."""
    return max(batch, (loaded.settings.limits.memory - 2 * batch) // (4 * max(1, _sinks_in_use(loaded))))


def _sinks_in_use(loaded: Loaded) -> int:
    return len({entry.sink for table in loaded.settings.tables for entry in table.to})


def decoder(loaded: Loaded, name: str) -> Decoder:
    """The decoder of the source `name`, by its format, with what the tables of that source declare; without the records of
    rows that were forgotten. ConfigProblem where some were of a source that the config does not name any more."""
    made, erased = decoder_of_all(loaded, name), erasures(loaded).load()
    if erased is None:
        return made
    _refuse_unknown(loaded, erased)
    return withholding(made, erased.hashes, erased.of(name))


def _refuse_unknown(loaded: Loaded, erased: Erased) -> None:
    """A source of another name would bring back what was forgotten."""
    for one in erased.erasures:
        if one.source not in loaded.settings.sources:
            raise ConfigProblem(
                f"rows of table {one.table} of source {one.source!r} were forgotten, and the config has no such source; "
                "under another name they would come back",
                next_step="Give the source its name again. If it is no more, take its entries out of "
                f"{erasures(loaded).path}.",
            )


def decoder_of_all(loaded: Loaded, name: str) -> Decoder:
    """`decoder`, of records of rows that were forgotten too."""
    settings = loaded.settings.sources[name]
    factory = load("replicator.decoders", settings.format, f"{loaded.where('sources', name, 'format')}: ")
    # Tables that say nothing are named too: the most specific match wins whole, so a glob must not speak for them.
    mine = [t for t in loaded.settings.tables if t.source == name]
    said = {t.match: next(iter(loaded.settings.lanes_of(t, t.match)), None) for t in mine}
    limits = loaded.settings.limits
    made: Decoder = _built(
        factory,
        {
            "schema": {t.match: dict(t.declared or {}) for t in mine},
            "keys": {match: list((lane and lane.keys) or ()) for match, lane in said.items()},
            "tombstones": {match: (lane and lane.tombstones) or "ignore" for match, lane in said.items()},
            "limits": {"message_bytes": limits.message_bytes, "depth": limits.depth, "columns": limits.columns},
            **private(mine, loaded.settings.defaults),
            **(_out_of_range(loaded, mine) if settings.format in WITH_OUT_OF_RANGE else {}),
            **({"truncates": truncates(loaded, mine)} if settings.format in WITH_TRUNCATES else {}),
            **settings.for_decoder({key: value for key, value in plain_options(settings).items() if key in FOR_DECODERS}),
        },
    )
    return made


def _out_of_range(loaded: Loaded, tables: Sequence[TableSettings]) -> dict[str, Any]:
    """What decoders are told of dates and times that no target can hold, by table. Event logs keep records as they are."""
    found: dict[str, OutOfRange] = {}
    for table in tables:
        lanes = [lane for lane in loaded.settings.lanes_of(table, table.match) if lane.kind != "event_log"]
        masks = {name: mask.kind for name, mask in private_columns(table, loaded.settings.defaults).items()}
        said: Said = next((lane.out_of_range for lane in lanes if lane.out_of_range is not None), "reject")
        found[table.match] = OutOfRange(said, tuple(reads_of(lane.shape) for lane in lanes), masks)
    return {"out_of_range": found}


def is_private(loaded: Loaded, source: str) -> bool:
    """Whether records of a source have values that are kept from what is stored."""
    return bool(private([t for t in loaded.settings.tables if t.source == source], loaded.settings.defaults))


def private(tables: Sequence[TableSettings], defaults: PolicyKeys) -> dict[str, Any]:
    """What decoders are told that keep values from everybody else, by table; nothing where there is nothing private."""
    found = {table.match: private_columns(table, defaults) for table in tables}
    return {"private": found} if any(found.values()) else {}


def truncates(loaded: Loaded, tables: Sequence[TableSettings]) -> dict[str, Any]:
    """By table the condition that holds for truncates, where all its lanes have the same: these need not have a key."""
    found = {}
    for table in tables:
        conditions = {lane.shape.truncates for lane in loaded.settings.lanes_of(table, table.match)}
        if len(conditions) == 1 and None not in conditions:
            found[table.match] = conditions.pop()
    return found


def sink(loaded: Loaded, name: str) -> Sink[Any]:
    """The sink `name` in this process, by its kind: what reads a target and its lanes, whichever engine writes it."""
    settings = loaded.settings.sinks[name]
    if isinstance(settings, EventStoreSinkSettings):
        return _built(load(STORES, settings.place, f"{loaded.where('event_store')}: "), _of_store(loaded, settings))
    factory = load("replicator.sinks", settings.kind, f"{loaded.where('sinks', name, 'kind')}: ")
    made: Sink[Any] = _built(factory, options(settings))
    return made


def sink_of_engine(loaded: Loaded, name: str) -> Sink[Any]:
    """The sink `name` for the pipeline's engine: what writes a target."""
    settings = loaded.settings.sinks[name]
    if isinstance(settings, EventStoreSinkSettings):
        of_store = _for_engine(loaded, STORES, settings.place, ("event_store",))
        return _built(of_store, {**_of_store(loaded, settings), **_of_engine(loaded)})
    factory = _for_engine(loaded, "replicator.sinks", settings.kind, ("sinks", name, "kind"))
    made: Sink[Any] = _built(factory, {**options(settings), **_of_engine(loaded)})
    return made


def _of_store(loaded: Loaded, settings: EventStoreSinkSettings) -> Mapping[str, Any]:
    """What a sink that is the store of events is told: its place, and what an event may hold."""
    return {**options(settings), "limits": asdict(event_limits(loaded))}


def event_limits(loaded: Loaded) -> EventLimits:
    """What an event may hold, from `limits`."""
    said = loaded.settings.limits
    return EventLimits(said.message_bytes, said.columns, said.depth)


def sink_that_drops(loaded: Loaded, name: str) -> Sink[Any]:
    """The sink `name` for taking targets away: the engine's where they have names in its catalog, or else the one in this
    process."""
    ours = loaded.settings.sinks[name].catalog_of == loaded.settings.engine
    return sink_of_engine(loaded, name) if ours else sink(loaded, name)


def sink_that_rewrites(loaded: Loaded, name: str) -> Sink[Any]:
    """The sink `name` for taking single rows away, or exchanging all of them: the engine's for a lake, some of whose tables
    no other one writes."""
    ours = loaded.settings.sinks[name].kind == "delta"
    return sink_of_engine(loaded, name) if ours else sink(loaded, name)


def sinks(loaded: Loaded) -> dict[str, Sink[Any]]:
    """Every sink that some table names, for the pipeline's engine; others are left alone."""
    named = {entry.sink for table in loaded.settings.tables for entry in table.to}
    return {name: sink_of_engine(loaded, name) for name in loaded.settings.sinks if name in named}


def engine(loaded: Loaded, **more: Any) -> Engine[Any]:
    """The engine of the pipeline; `more` options."""
    factory = load("replicator.engines", loaded.settings.engine, f"{loaded.where('engine')}: ")
    made: Engine[Any] = _built(factory, {**_of_engine(loaded), **more})
    return made


OF_A_PROCESS = 512 << 20
"""Bytes of `limits.memory` for each process that decodes ahead: its libraries and what it works on take half of that, and
batches that wait for it as much in this one."""


def engine_ahead(loaded: Loaded) -> Engine[Any]:
    """The same, for who reads a whole stream as fast as that goes."""
    ahead = loaded.settings.limits.memory // OF_A_PROCESS
    return engine(loaded, **({"ahead": ahead} if ahead and loaded.settings.engine == LOCAL else {}))


def dead_letters(loaded: Loaded) -> DeadLetters:
    """The dead-letter store; its place says of which kind it is."""
    kind = dead_letters_kind(loaded)
    factory = load("replicator.dead_letters", kind, f"{loaded.where('dead_letters')}: ")
    several = {} if kind == "delta" else {"pipeline": loaded.settings.pipeline}
    made: DeadLetters = _built(factory, {**options(loaded.settings.dead_letters), **several})
    return made


def dead_letters_kind(loaded: Loaded) -> str:
    """What keeps the dead letters."""
    settings = loaded.settings.dead_letters
    if isinstance(settings, PluginDeadLetterSettings):
        return settings.kind
    kinds = {"path": "delta", "dsn": "postgres", "topic": "kafka"}
    return next(kinds[key] for key in options(settings) if key in kinds)


def lanes(loaded: Loaded, table: str, source_name: str) -> Sequence[Lane]:
    """The lanes of one source table, as the configuration says them."""
    return [lane(loaded, s) for s in loaded.settings.lanes_for(table, source_name)]


def lane(loaded: Loaded, settings: LaneSettings) -> Lane:
    """One lane for the pipeline."""
    entry = loaded.settings.table_for(settings.table, settings.source)
    return Lane(
        id=f"{settings.sink}.{settings.into}",
        pipeline=loaded.settings.pipeline,
        source=settings.source,
        table=settings.table,
        sink=settings.sink,
        into=settings.into,
        policy=settings.policy,
        options=dict(settings.options),
        config_line=config_line(loaded, settings),
        watermark=settings.watermark,
        retention=settings.retention,
        tracked=settings.tracked,
        shape=settings.shape,
        schema_rules=settings.schema_rules,
        stops=loaded.settings.on_reject_of(settings.table, settings.source) == "stop_lane",
        refused=settings.refused,
        pattern="" if entry is None or is_exact(entry.match) else entry.match,
    )


def config_line(loaded: Loaded, settings: LaneSettings) -> str:
    """Where the entry of a lane stands: `file:line`."""
    return loaded.where(*settings.at)


def options(settings: Any) -> Mapping[str, Any]:
    """The keys of one source, sink or store as its adapter takes them; secrets in clear: never log them."""
    hidden = NOT_FOR_ADAPTERS - getattr(settings, "also_told", frozenset())
    timed: frozenset[str] = getattr(settings, "in_seconds", frozenset())
    found = {name: value for name, value in plain_options(settings).items() if name not in hidden}
    return {name: timespan(value).total_seconds() if name in timed else value for name, value in found.items()}


def _built(factory: Any, given: Mapping[str, Any]) -> Any:
    try:
        return factory(given)
    except ValueError as wrong:
        # An adapter's own options model refuses; its text names keys, and hides values.
        raise ConfigProblem(f"{getattr(factory, '__name__', factory)}: {wrong}") from wrong
