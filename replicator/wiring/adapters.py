"""Builds the adapters that a configuration names, and stores the events that programs emit."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from replicator.application.operations.backfill import BackfilledSource
from replicator.application.options import Backoff
from replicator.application.quarantine.erasure_filter import ErasureList, filter_erased
from replicator.application.quarantine.poison_records import filter_poison_records, load_poison_records
from replicator.application.state_folder import REGISTER_FOLDER, FileRegister
from replicator.domain.errors import ConfigProblem, Retryable
from replicator.domain.events import AppendedEvent, EventLimits, NewEvent, prepare_retry
from replicator.domain.out_of_range import OutOfRange, RangeRules, find_reads
from replicator.domain.patterns import is_exact
from replicator.domain.transform.columns import Mask
from replicator.ports.adapter_options import AdapterOptions, SourceOptions
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane
from replicator.ports.options import to_timedelta
from replicator.ports.sink import Sink
from replicator.ports.source import Source
from replicator.ports.stores import DeadLetters, EventStore
from replicator.settings import LaneSettings, Loaded
from replicator.settings.adapter_models import (
    FORMAT_KEYS,
    FORMATS,
    SINKS,
    TRANSPORTS,
    EventStoreSinkSettings,
    FreeForm,
    get_format,
)
from replicator.settings.plugins import list_names, load_adapter
from replicator.settings.schema import to_plain_options
from replicator.settings.tables import PolicyKeys, TableSettings, find_private_columns

LOCAL = "local"
STORES = "replicator.event_store_lanes"
CORE_KEYS = frozenset(
    {"kind", "engines", "format", "transport", "database", "connect", "transactions", "patience", "snapshots", "retention"}
)
DECODER_KEYS = FORMAT_KEYS - CORE_KEYS
"""Keys of a source that configure its decoder."""
HIDDEN_KEYS = CORE_KEYS | DECODER_KEYS


def build_source(
    loaded: Loaded,
    name: str,
    engine: str | None = None,
    *,
    sinks: int | None = None,
    sources: int = 1,
    files: Sequence[str] | None = None,
) -> Source[Any]:
    """The source `name`, by its transport. `engine`: another one than that of the pipeline. `sinks`, `sources`: see
    `compute_batch_bytes`. `files`: only these files of the source, and earlier ones of their tables."""
    settings = get_transport_settings(loaded, name)
    compute_bytes = compute_whole_bytes if settings.is_whole else compute_batch_bytes
    size = compute_bytes(loaded, sinks, sources)
    more: dict[str, Any] = {**list_kept_options(loaded, name), "batch_bytes": size}
    if files is not None:
        more["through"] = list(files)
    source = open_transport(loaded, name, settings.transport, make_options(settings, more), engine)
    return add_backfills(loaded, name, source, size, engine) if has_backfills(loaded, name) else source


def get_transport_settings(loaded: Loaded, name: str) -> SourceOptions:
    """The settings of the source `name` for its transport: without keys that only formats of other packages have."""
    settings = loaded.settings.sources[name]
    model = TRANSPORTS.get(settings.transport, type(settings))
    if type(settings) is model:
        return settings
    return model.model_construct(**{field: getattr(settings, field) for field in model.model_fields})


def open_transport(loaded: Loaded, name: str, transport: str, options: Options, engine: str | None = None) -> Source[Any]:
    """The records of the source `name`, from a transport with these options."""
    factory = _load_for_engine(loaded, "replicator.sources", transport, ("sources", name, "transport"), engine)
    if isinstance(options, Mapping) and transport in TRANSPORTS:
        options = TRANSPORTS[transport].read(options)
    source: Source[Any] = call_factory(factory, _add_session(loaded, options, engine))
    return source


def _list_limits(loaded: Loaded) -> dict[str, int]:
    """The `limits`, besides the batch size. A model takes what it needs."""
    limits = loaded.settings.limits
    return {"memory": limits.memory, "message_bytes": limits.message_bytes}


def make_check_options(loaded: Loaded, name: str) -> dict[str, Any]:
    """The options of the source `name` for its check."""
    settings = get_transport_settings(loaded, name)
    own = list_kept_options(loaded, name)
    if isinstance(settings, FreeForm):
        return {**list_options(settings), **own}
    limits = {key: value for key, value in _list_limits(loaded).items() if key in type(settings).model_fields}
    return {**to_plain_options(settings), **own, **limits}


def build_topic_reader(loaded: Loaded, named: str | None, topics: Sequence[str]) -> Source[Any]:
    """A reader of `topics` from their start in this process. The broker, security and options are those of the Kafka
    source `named`, or of the only one. ConfigProblem if the source is not clear."""
    names = [name for name, settings in loaded.settings.sources.items() if settings.reads_broker]
    if named is None and len(names) == 1:
        named = names[0]
    if named not in names:
        problem = f"there are {len(names)} Kafka sources"
        if named:
            problem = f"there is no source {named!r} with `transport: kafka`"
        raise ConfigProblem(problem, next_step=f"Name one with --source: {', '.join(names) or 'the config has none'}.")
    settings = get_transport_settings(loaded, str(named))
    # `model_copy` runs no validators: both values are valid.
    topic_settings = settings.model_copy(update={"topics": list(topics), "start_from": "earliest"})
    options = make_options(topic_settings, {"batch_bytes": compute_batch_bytes(loaded)})
    source: Source[Any] = call_factory(load_adapter("replicator.sources", settings.transport), options)
    return source


def has_backfills(loaded: Loaded, name: str) -> bool:
    """True if tables of the source can be read whole, besides their changes."""
    settings = loaded.settings.sources[name]
    return get_format(settings.format).has_backfills and getattr(settings, "database", None) is not None


def add_backfills(loaded: Loaded, name: str, source: Source[Any], size: int, engine: str | None = None) -> Source[Any]:
    """The source plus the journal of its backfills. Without a journal on this engine, only the source."""
    if not has_journal(loaded, engine):
        return source
    options = {"state": str(get_backfills_folder(loaded, name)), "batch_bytes": size, **_list_engine_options(loaded, engine)}
    return BackfilledSource(source, call_factory(load_adapter("replicator.sources", _find_journal(loaded, engine)), options))


def has_journal(loaded: Loaded, engine: str | None = None) -> bool:
    """True if the engine can apply backfills."""
    return _find_journal(loaded, engine) in list_names("replicator.sources")


def _find_journal(loaded: Loaded, engine: str | None) -> str:
    used = engine or loaded.settings.engine
    return "backfills" if used == LOCAL else f"backfills_{used}"


def get_backfills_folder(loaded: Loaded, name: str) -> Path:
    """The folder to which backfills of the source write rows."""
    return get_state_folder(loaded) / "backfills" / name


def list_kept_options(loaded: Loaded, name: str) -> dict[str, Any]:
    """The options of a source with stored state: its folder, and the key, declared and private columns of its table."""
    settings = loaded.settings.sources[name]
    table = settings.stateful_table
    if table is None:
        return {}
    lanes = loaded.settings.resolve_lanes(table, name)
    declared = next((dict(lane.declared) for lane in lanes if lane.declared), None)
    columns = {} if declared is None else {"schema": declared}
    masks = find_masks(loaded, table, name)
    return {
        "keys": find_keys(lanes),
        "state": str(get_kept_folder(loaded, name)),
        **columns,
        **({"private": masks} if masks else {}),
    }


def find_keys(lanes: Iterable[LaneSettings]) -> tuple[str, ...]:
    """The first keys of a table's lanes; empty if they are learnt."""
    return next((lane.keys for lane in lanes if lane.keys), ())


def find_masks(loaded: Loaded, table: str, source: str) -> dict[str, Mask]:
    """The masks of the private columns of a table; empty if no entry matches it."""
    entry = loaded.settings.find_table(table, source)
    return {} if entry is None else find_private_columns(entry, loaded.settings.defaults)


def get_kept_folder(loaded: Loaded, name: str) -> Path:
    """The folder with what a source compares its table with."""
    return get_state_folder(loaded) / "kept" / name


def get_state_folder(loaded: Loaded) -> Path:
    """The folder for the pipeline's files on this machine."""
    return Path(loaded.settings.state) / loaded.settings.pipeline


def find_reading_engine(loaded: Loaded) -> str:
    """The engine of commands that only read: the local one, unless a transport has no local adapter."""
    used = [loaded.settings.sources[table.source] for table in loaded.settings.tables]
    of_engine = any(getattr(source, "table", None) for source in used)  # A catalog belongs to the engine.
    if of_engine or not {source.transport for source in used} <= set(list_names("replicator.sources")):
        return str(loaded.settings.engine)
    return LOCAL


def open_erasure_list(loaded: Loaded) -> ErasureList:
    """The list of erased rows."""
    return ErasureList(get_erasures_folder(loaded))


def get_erasures_folder(loaded: Loaded) -> Path:
    """The folder of the list of erased rows."""
    folder = loaded.settings.erasures
    return get_state_folder(loaded) if folder is None else Path(folder)


def _load_for_engine(loaded: Loaded, group: str, name: str, at: tuple[str, ...], engine: str | None) -> Any:
    """The adapter `name` for an engine, by default that of the pipeline. It is registered as `<name>_<engine>`, for the
    local engine as `<name>`."""
    engine = engine or loaded.settings.engine
    if engine == LOCAL:
        return load_adapter(group, name, f"{loaded.describe_origin(*at)}: ")
    if f"{name}_{engine}" not in list_names(group):
        supported = sorted(n.removesuffix(f"_{engine}") for n in list_names(group) if n.endswith(f"_{engine}"))
        raise ConfigProblem(
            f"{loaded.describe_origin(*at)}: {name!r} does not run on the engine {engine!r}",
            next_step=f"This engine supports: {', '.join(supported)}. Or use `engine: local`.",
        )
    return load_adapter(group, f"{name}_{engine}", f"{loaded.describe_origin(*at)}: ")


def _list_engine_options(loaded: Loaded, engine: str | None) -> dict[str, Any]:
    """The options that all adapters of an engine share: its session options, and the schemes of `list_object_stores`."""
    engine = engine or loaded.settings.engine
    if engine == LOCAL:
        return {}
    stores = list_object_stores(loaded)
    return {engine: dict(getattr(loaded.settings, engine)), **({"stores": stores} if stores else {})}


def list_object_stores(loaded: Loaded) -> list[str]:
    """The schemes of object stores that contain a sink or a source table. Files of other sources do not count: they
    are read without the engine's support for stores."""
    sources = (source.lake or "" for source in loaded.settings.sources.values())
    paths = (*(str(getattr(sink, "path", None)) for sink in loaded.settings.sinks.values()), *sources)
    return sorted({path.partition("://")[0] for path in paths if "://" in path})


def compute_batch_bytes(loaded: Loaded, sinks: int | None = None, sources: int = 1) -> int:
    """Maximum input bytes of one batch, so that all batches in progress fit into `limits.memory`. `sinks`: how many the
    pipeline writes, by default those of all tables. `sources`: how many it reads at the same time.

    At the same time there are, for each source, the raw batch, its decoded form, and one that waits for each sink. For
    each sink there is one running batch.
    """
    limits, sinks = loaded.settings.limits, _count_sinks(loaded, sinks)
    return max(1, min(limits.batch_bytes, limits.memory // (sources * (2 + sinks) + sinks)))


def compute_whole_bytes(loaded: Loaded, sinks: int | None = None, sources: int = 1) -> int:
    """Maximum input bytes of the only batch of a source with `mode: batch`. No other batch of the source is in progress
    besides its raw form, its decoded form, and one for each sink."""
    return max(1, loaded.settings.limits.memory // (sources * (2 + _count_sinks(loaded, sinks))))


GATHER_FACTOR = 2
"""Batches that may wait for one sink. A sink that rewrites files is faster with fewer, larger batches."""


def compute_waiting_bytes(loaded: Loaded, batch: int, sinks: int, sources: int = 1) -> int:
    """Maximum bytes that wait for one sink, within `limits.memory` for batches of `batch` bytes. Each source may exceed it
    by one batch."""
    room = (loaded.settings.limits.memory - batch * sources * (2 + sinks)) // max(1, sinks)
    return max(batch, min(GATHER_FACTOR * batch, room))


def compute_gathering_bytes(loaded: Loaded, batch: int, sinks: int, sources: int = 1) -> int:
    """The same for runs that gather more: a quarter of the memory that batches in progress leave. A sink works on
    as much again, and its unpacked rows need several times the size of packed records."""
    return max(batch, (loaded.settings.limits.memory - 2 * batch * sources) // (4 * max(1, sinks)))


def _count_sinks(loaded: Loaded, sinks: int | None) -> int:
    return len(list_used_sinks(loaded)) if sinks is None else sinks


def list_used_sinks(loaded: Loaded, sources: Collection[str] | None = None) -> list[str]:
    """The sinks that some table names, in the order of the config. `sources`: only tables of these."""
    tables = (table for table in loaded.settings.tables if sources is None or table.source in sources)
    named = {entry.sink for table in tables for entry in table.to}
    return [name for name in loaded.settings.sinks if name in named]


def build_decoder(loaded: Loaded, name: str) -> Decoder:
    """The decoder of the source `name`, by its format, with the declarations of its tables. It drops records of
    erased rows.

    ConfigProblem if rows of a source were erased that the config no longer names.
    """
    return _drop_erased(loaded, name, build_unfiltered_decoder(loaded, name))


def build_safe_decoder(loaded: Loaded, name: str, *, with_erased: bool = False) -> Decoder:
    """Like `build_decoder`, for records that the stream of the pipeline has read before. It decodes no poison records of
    that stream: they would end this process, too."""
    notes = FileRegister(get_state_folder(loaded) / REGISTER_FOLDER).get_crash_notes(name)
    poison = load_poison_records(notes, name, partial(build_dead_letters, loaded))
    decoder = filter_poison_records(build_unfiltered_decoder(loaded, name), poison)
    return decoder if with_erased else _drop_erased(loaded, name, decoder)


def _drop_erased(loaded: Loaded, name: str, decoder: Decoder) -> Decoder:
    erased = open_erasure_list(loaded).load()
    if erased is None:
        return decoder
    for one in erased.erasures:
        # Under another source name, erased rows would return.
        if one.source not in loaded.settings.sources:
            raise ConfigProblem(
                f"rows of table {one.table} of source {one.source!r} were erased, but the config has no such source. "
                "Under another source name they would come back",
                next_step="Give the source its old name again. If the source does not exist any more, remove its entries "
                f"from {open_erasure_list(loaded).path}.",
            )
    return filter_erased(decoder, erased.hashes, erased.select_source(name))


def build_unfiltered_decoder(loaded: Loaded, name: str) -> Decoder:
    """Like `build_decoder`, but with the records of erased rows."""
    settings = loaded.settings.sources[name]
    form = get_format(settings.format)
    factory = load_adapter("replicator.decoders", settings.format, f"{loaded.describe_origin('sources', name, 'format')}: ")
    # Tables without declarations are listed too: the most specific match wins whole, so no glob may apply to them.
    mine = [t for t in loaded.settings.tables if t.source == name]
    lanes = {t.match: next(iter(loaded.settings.resolve_entry_lanes(t, t.match)), None) for t in mine}
    limits = loaded.settings.limits
    values = {
        "schema": {t.match: dict(t.declared or {}) for t in mine},
        "keys": {match: list((lane and lane.keys) or ()) for match, lane in lanes.items()},
        "tombstones": {match: (lane and lane.tombstones) or "ignore" for match, lane in lanes.items()},
        "limits": {"message_bytes": limits.message_bytes, "depth": limits.depth, "columns": limits.columns},
        **list_private_options(mine, loaded.settings.defaults),
        **({"truncates": list_truncate_conditions(loaded, mine)} if form.reads_truncates else {}),
    }
    if form.reads_out_of_range:
        # Event logs keep records as they are, so only the lanes of a table count.
        by_table: dict[str, OutOfRange] = {}
        for table in mine:
            own_lanes = loaded.settings.resolve_entry_lanes(table, table.match)
            masks = {column: mask.kind for column, mask in find_private_columns(table, loaded.settings.defaults).items()}
            rules: RangeRules = next((lane.out_of_range for lane in own_lanes if lane.out_of_range is not None), "reject")
            by_table[table.match] = OutOfRange(rules, tuple(find_reads(lane.row_transforms) for lane in own_lanes), masks)
        values["out_of_range"] = by_table
    own = settings.for_decoder({key: value for key, value in to_plain_options(settings).items() if key in DECODER_KEYS})
    options = form.read({**form.select_given(values), **own}) if settings.format in FORMATS else {**values, **own}
    decoder: Decoder = call_factory(factory, options)
    return decoder


def build_plain_decoder(name: str) -> Decoder:
    """A decoder of the format `name`, without options."""
    factory = load_adapter("replicator.decoders", name)
    decoder: Decoder = call_factory(factory, FORMATS[name].read({}) if name in FORMATS else {})
    return decoder


def is_private(loaded: Loaded, source: str) -> bool:
    """True if records of a source have values that must not be stored."""
    return bool(list_private_options([t for t in loaded.settings.tables if t.source == source], loaded.settings.defaults))


def list_private_options(tables: Sequence[TableSettings], defaults: PolicyKeys) -> dict[str, Any]:
    """By table, the decoder options that mask private values. Empty if nothing is private."""
    by_table = {table.match: find_private_columns(table, defaults) for table in tables}
    return {"private": by_table} if any(by_table.values()) else {}


def list_truncate_conditions(loaded: Loaded, tables: Sequence[TableSettings]) -> dict[str, Any]:
    """By table, the condition for truncates, if all its lanes have the same. Truncates need no key."""
    by_table = {}
    for table in tables:
        conditions = {lane.row_transforms.truncates for lane in loaded.settings.resolve_entry_lanes(table, table.match)}
        if len(conditions) == 1 and None not in conditions:
            by_table[table.match] = conditions.pop()
    return by_table


def build_sink(loaded: Loaded, name: str) -> Sink[Any]:
    """The sink `name` in this process, by its kind. It reads a target and its lanes, whichever engine writes them."""
    factory, options = _load_sink(loaded, name, LOCAL)
    sink: Sink[Any] = call_factory(factory, options)
    return sink


def build_engine_sink(loaded: Loaded, name: str, engine: str | None = None) -> Sink[Any]:
    """The sink `name` for an engine, by default that of the pipeline. It writes targets."""
    factory, options = _load_sink(loaded, name, engine)
    sink: Sink[Any] = call_factory(factory, _add_session(loaded, options, engine))
    return sink


def _load_sink(loaded: Loaded, name: str, engine: str | None) -> tuple[Any, Options]:
    """The adapter of the sink `name` for an engine, and its options. For the event store, the adapter of its lanes."""
    settings = loaded.settings.sinks[name]
    if isinstance(settings, EventStoreSinkSettings):
        factory = _load_for_engine(loaded, STORES, settings.store.adapter, ("event_store",), engine)
        return factory, make_options(settings.store, {"limits": build_event_limits(loaded)})
    factory = _load_for_engine(loaded, "replicator.sinks", settings.kind, ("sinks", name, "kind"), engine)
    return factory, make_options(settings, {})


def find_lake() -> str:
    """The kind of the sinks and of the dead-letter stores that rebuilds and checkpoints have in a folder."""
    return next(kind for kind, model in SINKS.items() if model.is_lake)


def open_lake(folder: Path) -> Sink[Any]:
    """A sink of tables in a folder of this machine."""
    lake: Sink[Any] = load_adapter("replicator.sinks", find_lake())({"path": str(folder)})
    return lake


def build_event_limits(loaded: Loaded) -> EventLimits:
    """The limits of an event, from `limits`."""
    limits = loaded.settings.limits
    return EventLimits(limits.message_bytes, limits.columns, limits.depth)


DECODER_PROCESS_BYTES = 512 << 20
"""Bytes of `limits.memory` for each prefetching process. Its libraries and its batch need half of them; batches
that wait in this process need the other half."""


def build_engine(loaded: Loaded, engine: str | None = None, *, prefetches: bool = False) -> Engine[Any]:
    """An engine, by default that of the pipeline. `prefetches`: it reads a whole stream as fast as possible."""
    used = engine or loaded.settings.engine
    factory = load_adapter("replicator.engines", used, f"{loaded.describe_origin('engine')}: ")
    ahead = loaded.settings.limits.memory // DECODER_PROCESS_BYTES if prefetches and used == LOCAL else 0
    built: Engine[Any] = call_factory(factory, {**_list_engine_options(loaded, used), **({"ahead": ahead} if ahead else {})})
    return built


def build_dead_letters(loaded: Loaded, folder: Path | None = None) -> DeadLetters:
    """The dead-letter store: in a folder of this machine, or the configured one."""
    settings = loaded.settings.dead_letters
    kind, options = settings.adapter, make_options(settings, {"pipeline": loaded.settings.pipeline})
    if folder is not None:
        kind, options = find_lake(), {"path": str(folder)}
    factory = load_adapter("replicator.dead_letters", kind, f"{loaded.describe_origin('dead_letters')}: ")
    store: DeadLetters = call_factory(factory, options)
    return store


def build_lane(loaded: Loaded, settings: LaneSettings) -> Lane:
    """One lane of the pipeline."""
    entry = loaded.settings.find_table(settings.table, settings.source)
    return Lane(
        id=f"{settings.sink}.{settings.into}",
        pipeline=loaded.settings.pipeline,
        source=settings.source,
        table=settings.table,
        sink=settings.sink,
        into=settings.into,
        policy=settings.policy,
        options=dict(settings.options),
        config_line=get_config_line(loaded, settings),
        watermark=settings.watermark,
        retention=settings.retention,
        tracked=settings.tracked,
        row_transforms=settings.row_transforms,
        schema_rules=settings.schema_rules,
        stops=loaded.settings.get_on_reject(settings.table, settings.source) == "stop_lane",
        refused=settings.refused,
        pattern="" if entry is None or is_exact(entry.match) else entry.match,
        keys=settings.keys or (),
        deletes_by_null_records=settings.tombstones == "delete",
    )


def get_config_line(loaded: Loaded, settings: LaneSettings) -> str:
    """The config line of a lane's entry: `file:line`."""
    return loaded.describe_origin(*settings.at)


Options: TypeAlias = AdapterOptions | Mapping[str, Any]
"""Options for an adapter: its validated model, or a mapping if it publishes none."""


def make_options(settings: AdapterOptions, values: Mapping[str, Any]) -> Options:
    """The options of an adapter, with values that the pipeline adds."""
    return {**list_options(settings), **values} if isinstance(settings, FreeForm) else settings.with_given(values)


def _add_session(loaded: Loaded, options: Options, engine: str | None) -> Options:
    """The options with the session options of the engine. A model also takes the limits that it needs."""
    session = _list_engine_options(loaded, engine)
    if isinstance(options, Mapping):
        return {**options, **session}
    of_session = {"session": session.get(engine or loaded.settings.engine), "stores": tuple(session.get("stores", ()))}
    return options.with_given({**_list_limits(loaded), **of_session})


def list_options(settings: Any) -> Mapping[str, Any]:
    """The keys of one source, sink or store for its adapter. Secrets are in clear: never log them."""
    timed: frozenset[str] = getattr(settings, "in_seconds", frozenset())
    options = {name: value for name, value in to_plain_options(settings).items() if name not in HIDDEN_KEYS}
    return {name: to_timedelta(value).total_seconds() if name in timed else value for name, value in options.items()}


def call_factory(factory: Any, options: Options) -> Any:
    """The adapter. ConfigProblem for options that its own model refuses."""
    try:
        return factory(options)
    except ValueError as wrong:
        # Raised by the adapter's own options model. Its text contains keys, but no values.
        raise ConfigProblem(f"{getattr(factory, '__name__', factory)}: {wrong}") from wrong


# The event store, and the events that programs emit.


def open_store(loaded: Loaded) -> EventStore:
    """The event store, by its location and the pipeline's engine. ConfigProblem if the configuration has none."""
    settings = loaded.settings.event_store
    if settings is None:
        raise ConfigProblem(
            "the configuration has no event store",
            next_step="Add one, for example event_store: {path: ./deltalake/events}",
        )
    engine, kind, values = loaded.settings.engine, settings.adapter, {}
    if engine != LOCAL and f"{kind}_{engine}" in list_names("replicator.event_stores"):
        scheme, is_url, _ = str(getattr(settings, "path", None)).partition("://")
        session = dict(getattr(loaded.settings, engine))
        kind = f"{kind}_{engine}"
        values = {"session": session, engine: session, "stores": (scheme,) if is_url else ()}
    factory = load_adapter("replicator.event_stores", kind, f"{loaded.describe_origin('event_store')}: ")
    store: EventStore = call_factory(factory, make_options(settings, values))
    return store


@dataclass(frozen=True, slots=True)
class EventEmitter:
    """Stores events in `store`, if they are within `limits`. Temporary errors are retried with the same ids for
    `patience` seconds. Thread-safe."""

    store: EventStore
    limits: EventLimits
    patience: float = 10.0
    stop: threading.Event = field(default_factory=threading.Event)

    def emit(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """See `EventStore.append`; InvalidEvent for an event beyond the limits."""
        for new in events:
            self.limits.check(new)
        backoff, end = Backoff(), time.monotonic() + self.patience
        while True:
            try:
                return self.store.append(events)
            except Retryable:
                if time.monotonic() > end or backoff.wait(self.stop):
                    raise
                events = [prepare_retry(new) for new in events]


def make_emitter(loaded: Loaded) -> EventEmitter:
    """An emitter of events. Its store stays open until it is closed."""
    return EventEmitter(open_store(loaded), build_event_limits(loaded))
