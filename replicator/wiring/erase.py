"""`erase_row`: finds the row of a key and all its locations, and makes sure that nothing writes there."""

from __future__ import annotations

import getpass
import hmac
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import quote

import pyarrow as pa

from replicator.application.instance_lock import InstanceLock
from replicator.application.lane_registry import make_refused_id
from replicator.application.operations import checkpoint_erasure
from replicator.application.operations.change_history import parse_key
from replicator.application.operations.erase import ErasureOperation, ErasureOutcome, ErasureTargets, refresh_projections
from replicator.application.operations.rebuild import BEGIN_FILE, SPILL_FOLDER, list_rebuild_folders, list_rebuilds
from replicator.application.schema_history import read_schema_versions
from replicator.application.stream.file_register import FileRegister
from replicator.domain.erasures import Erasure, to_key_texts
from replicator.domain.errors import ConfigProblem, Fenced
from replicator.domain.projection import Projection, list_dependents
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Lane
from replicator.settings import Loaded
from replicator.settings.renamed_columns import find_private_columns

from . import adapters, build, projections
from .components import ConfiguredComponents
from .daemon import ask_status
from .event_logs import BACKFILLS

HASH_PATTERN = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class ErasureScope:
    """One row, and all its locations.

    - `texts`: the key in clear.
    - `targets`, `logs` (event logs), `dead_letters` (kind of the store), `projections` that read one of these.
    - `stays`: copies that this program cannot change, with the reason.
    """

    source: str
    table: str
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    targets: Sequence[Lane]
    logs: Sequence[Lane]
    dead_letters: str
    projections: Sequence[Projection]
    stays: Sequence[str]


def find_row(loaded: Loaded, table: str, key: Sequence[str], source: str | None = None) -> ErasureScope:
    """The row of `key` in `table` (its source name). `key`: one text per key column.

    ConfigProblem for an unknown or ambiguous table, or one without a known key. Fenced while a process runs that
    writes its targets.
    """
    name = _find_source(loaded, table, source)
    parts = ConfiguredComponents(loaded)
    with _hold_instance(loaded), ExitStack() as opened:
        _refuse_stored_events(loaded, table, name)
        targets = [*_list_targets(loaded, table, name), *list_rebuilds(parts, table, name)]
        spec = _find_schema(loaded, table, name, [(lane, _open_sink(loaded, lane, opened)) for lane in targets])
        keyed = tuple(_list_key_texts(loaded, spec, name, key))
        letters = adapters.get_dead_letters_kind(loaded)
        logs = build.build_event_logs(loaded, name)
        read = _list_projections(loaded, [*(lane.id for lane in targets), *(lane.sink for lane in logs)])
        return ErasureScope(
            name, table, spec.keys, keyed, targets, logs, letters, read, list(_describe_remaining(loaded, table, name))
        )


def erase_row(loaded: Loaded, found: ErasureScope, *, end_versions: bool, tell: Callable[[str], None]) -> ErasureOutcome:
    """Erase the row, permanently from the first step on. Fenced as `find_row`."""
    parts = ConfiguredComponents(loaded)
    with _hold_instance(loaded), ExitStack() as opened:
        targets: list[tuple[Lane, Any]] = [(lane, _open_sink(loaded, lane, opened)) for lane in found.targets]
        stores: list[Any] = [opened.enter_context(closing(cast(Any, adapters.build_dead_letters(loaded))))]
        for lane, sink, rejected in checkpoint_erasure.open_checkpoints(parts, found.table, found.source, opened):
            targets.append((lane, sink))
            stores.append(rejected)
        for folder in list_rebuild_folders(ConfiguredComponents(loaded)):
            shutil.rmtree(
                folder / BEGIN_FILE, ignore_errors=True
            )  # The checkpoint copy of a killed rebuild, which copies it again.
            if (laid := folder / loaded.settings.pipeline / SPILL_FOLDER).exists():
                shutil.rmtree(laid)  # The spill files of a killed rebuild, which starts again.
        logs = [(lane, _open_sink(loaded, lane, opened)) for lane in found.logs]
        topics = FileRegister(build.get_register_folder(loaded)).load(found.source).topics.get(found.table, frozenset())
        topics |= {BACKFILLS.removesuffix("*") + found.table}
        asked = Erasure(found.source, found.table, found.columns, "", datetime.now(UTC), _get_user(), frozenset(topics))
        decoder = adapters.build_unfiltered_decoder(loaded, found.source)
        forgetting = ErasureOperation(
            adapters.open_erasure_list(loaded),
            decoder,
            ErasureTargets(
                targets, logs, stores[0] if len(stores) == 1 else cast(Any, checkpoint_erasure.CombinedDeadLetters(stores))
            ),
            tell,
        )
        done = forgetting.run(asked, found.texts, end_versions=end_versions)
        if found.projections:
            with projections.open_refresher(loaded) as refreshing:
                refresh_projections(refreshing, found.projections, done, end_versions=end_versions)
        return done


def _list_projections(loaded: Loaded, tables: Sequence[str]) -> tuple[Projection, ...]:
    return list_dependents(projections.build_projections(loaded), tables) if loaded.settings.projections else ()


def _get_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _find_source(loaded: Loaded, table: str, source: str | None) -> str:
    settings = loaded.settings
    known = [name for name in settings.sources if settings.find_table(table, name) is not None]
    if source is not None and source not in known:
        raise ConfigProblem(
            f"source {source!r} has no table {table!r}",
            next_step=f"Sources with such a table: {', '.join(known) or 'none'}.",
        )
    if not known:
        raise ConfigProblem(
            f"no entry of `tables` matches {table!r}", next_step="Name the table as its source calls it: SCHEMA.TABLE."
        )
    if source is None and len(known) > 1:
        raise ConfigProblem(
            f"several sources have a table {table!r}", next_step=f"Name one with `--source`: {', '.join(known)}."
        )
    return source or known[0]


def _refuse_stored_events(loaded: Loaded, table: str, source: str) -> None:
    for lane in loaded.settings.resolve_lanes(table, source):
        if not lane.is_mirror:
            raise ConfigProblem(
                f"events of {table} go to the store of events, out of which none is taken; nothing was removed "
                f"({adapters.get_config_line(loaded, lane)})",
                next_step="Take that entry out of the config to forget the event elsewhere. What is stored stays: keep what "
                "must be forgotten out of events.",
            )


def _list_targets(loaded: Loaded, table: str, source: str) -> Iterator[Lane]:
    begun = FileRegister(build.get_register_folder(loaded)).load(source).beginnings
    for lane in adapters.build_lanes(loaded, table, source):
        if not lane.refused and make_refused_id(lane) not in begun:
            yield lane


def _open_sink(loaded: Loaded, lane: Lane, opened: ExitStack) -> Any:
    sink: Any = ConfiguredComponents(loaded).open_sink(lane.sink, "rewrite")
    opened.callback(sink.close)
    needed = "empty" if not lane.table else "erase"
    if not hasattr(sink, needed):
        raise ConfigProblem(
            f"sink {lane.sink!r} cannot take single rows away; nothing was removed",
            next_step="Take the lane out of the config, and remove the row with what the sink's own system has for that.",
        )
    return sink


def _find_schema(loaded: Loaded, table: str, source: str, targets: Sequence[tuple[Lane, Any]]) -> TableSpec:
    """The table with its key, from the newest schema of a lane. Without one, as far as the config declares it."""
    for lane, sink in targets:
        versions = [version for version in read_schema_versions(sink, lane) if version.source.keys]
        if versions:
            return versions[-1].source
    keys = FileRegister(build.get_register_folder(loaded)).load(source).keys.get(table, ())
    keys = next((lane.keys for lane in loaded.settings.resolve_lanes(table, source) if lane.keys), keys)
    if not keys:
        raise ConfigProblem(
            f"the key of table {table} is not known: none of its targets has rows of it yet",
            next_step="Say `keys` in its entry under `tables`, or run the pipeline first.",
        )
    return TableSpec(table, tuple(Column(name, pa.string()) for name in keys), tuple(keys))


def _list_key_texts(loaded: Loaded, spec: TableSpec, source: str, key: Sequence[str]) -> Iterator[str]:
    """The key in its comparable form. Values of masked columns may be given in clear."""
    entry = loaded.settings.find_table(spec.name, source)
    private = {} if entry is None else dict(find_private_columns(entry, loaded.settings.defaults))
    for name, value in zip(spec.keys, parse_key(spec, key), strict=True):
        (text,) = to_key_texts(pa.chunked_array([pa.array([value.as_py()], value.type)])).to_pylist()
        mask = private.get(name)
        if mask is not None and mask.kind == "hmac" and not HASH_PATTERN.match(text):
            text = hmac.new(mask.key, text.encode(), "sha256").hexdigest()
        yield text


def _describe_remaining(loaded: Loaded, table: str, source: str) -> Iterator[str]:
    """The copies of rows of the table that `erase_row` does not change."""
    letters = loaded.settings.dead_letters
    topic = getattr(letters, "topic", None)
    if topic:
        yield (
            f"the Kafka topic {topic} of the dead letters cannot be edited: their bytes are gone once `replicator dlq "
            "purge` or the topic's retention has deleted what is before them too"
        )
    backfill = adapters.get_backfills_folder(loaded, source) / quote(table, safe="")
    if backfill.is_dir():
        yield f"{backfill} has what `replicator backfill` read of the table, until the next one replaces it"
    kept = adapters.get_state_folder(loaded) / "kept" / source
    if kept.is_dir():
        yield f"{kept} has what source {source} compares its table with: remove the row at the source"
    yield f"what source {source} itself keeps (topics, files, tables) is not touched; its records of the row are withheld"


@contextmanager
def _hold_instance(loaded: Loaded) -> Iterator[None]:
    """No daemon or `replay` of this pipeline and state folder runs or starts meanwhile. Other writers are fenced by
    the sinks."""
    if ask_status(loaded) is not None:
        raise Fenced(
            "the daemon runs, and would not know what is forgotten",
            next_step="Stop it, forget, and start it again: it goes on where it stopped.",
        )
    with ExitStack() as held:
        pipeline = loaded.settings.pipeline
        for folder in (
            adapters.get_state_folder(loaded),
            *(one / pipeline for one in list_rebuild_folders(ConfiguredComponents(loaded))),
        ):
            lock = InstanceLock(folder, pipeline)
            lock.acquire()
            held.callback(lock.release)
        yield
