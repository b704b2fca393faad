"""`forget`, put together: whose row a key means, where it is kept, and that nobody writes there."""

from __future__ import annotations

import getpass
import hmac
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pyarrow as pa

from replicator.application.forgetting import Forgetting, Outcome, Places, refresh
from replicator.application.instance import InstanceLock
from replicator.application.register import FileRegister
from replicator.application.remembering import remembered
from replicator.application.roster import refused_id
from replicator.domain.erasures import Erasure, texts
from replicator.domain.errors import ConfigProblem, Fenced
from replicator.domain.projections import Projection, reading
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Lane
from replicator.settings import Loaded
from replicator.settings.renamed import private_columns

from . import adapters, forgotten_snapshots, parts, projections
from .daemon import ask_status
from .histories import BACKFILLS, key_values
from .rebuilding import ASKED, BEGUN, LAID

HASHED = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Found:
    """The row that is meant, and where it is kept: `targets`, `logs` (event logs), `letters` (where dead letters are) and
    `projections` that read one of these. `stays`: what this program keeps of it and cannot change, with why. `texts` are the
    key in clear."""

    source: str
    table: str
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    targets: Sequence[Lane]
    logs: Sequence[Lane]
    letters: str
    projections: Sequence[Projection]
    stays: Sequence[str]


def look(loaded: Loaded, table: str, key: Sequence[str], source: str | None = None) -> Found:
    """What `table` (its name in the source) and `key`, a text for each key column, mean. ConfigProblem for a table of no
    entry, of several sources, or without a key that is known; Fenced while something runs that writes its targets."""
    name = _source(loaded, table, source)
    with _alone(loaded), ExitStack() as opened:
        _refuse_stored_events(loaded, table, name)
        targets = [*_targets(loaded, table, name), *replays(loaded, table, name)]
        spec = _spec(loaded, table, name, [(lane, _opened(loaded, lane, opened)) for lane in targets])
        keyed = tuple(_texts(loaded, spec, name, key))
        letters = adapters.dead_letters_kind(loaded)
        logs = parts.event_logs(loaded, name)
        read = _projections(loaded, [*(lane.id for lane in targets), *(lane.sink for lane in logs)])
        return Found(name, table, spec.keys, keyed, targets, logs, letters, read, list(_stays(loaded, table, name)))


def forget(loaded: Loaded, found: Found, *, end_versions: bool, tell: Callable[[str], None]) -> Outcome:
    """Forget the row: from the first step on, for good. Fenced as `look`."""
    with _alone(loaded), ExitStack() as opened:
        targets: list[tuple[Lane, Any]] = [(lane, _opened(loaded, lane, opened)) for lane in found.targets]
        stores: list[Any] = [opened.enter_context(closing(cast(Any, adapters.dead_letters(loaded))))]
        for lane, sink, rejected in forgotten_snapshots.opened(loaded, found.table, found.source, opened):
            targets.append((lane, sink))
            stores.append(rejected)
        for folder in _replay_folders(loaded):
            shutil.rmtree(folder / BEGUN, ignore_errors=True)  # The snapshot of one that was killed, which copies it again.
            if (laid := folder / loaded.settings.pipeline / LAID).exists():
                shutil.rmtree(laid)  # What one that was killed had laid down: it begins anew.
        logs = [(lane, _opened(loaded, lane, opened)) for lane in found.logs]
        topics = FileRegister(parts.register_folder(loaded)).load(found.source).topics.get(found.table, frozenset())
        topics |= {BACKFILLS.removesuffix("*") + found.table}
        asked = Erasure(found.source, found.table, found.columns, "", datetime.now(UTC), _user(), frozenset(topics))
        decoder = adapters.decoder_of_all(loaded, found.source)
        forgetting = Forgetting(
            adapters.erasures(loaded),
            decoder,
            Places(targets, logs, stores[0] if len(stores) == 1 else cast(Any, forgotten_snapshots.Letters(stores))),
            tell,
        )
        done = forgetting.run(asked, found.texts, end_versions=end_versions)
        if found.projections:
            with projections.refreshing(loaded) as refreshing:
                refresh(refreshing, found.projections, done, end_versions=end_versions)
        return done


def _projections(loaded: Loaded, tables: Sequence[str]) -> tuple[Projection, ...]:
    return reading(projections.projections(loaded), tables) if loaded.settings.projections else ()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _source(loaded: Loaded, table: str, source: str | None) -> str:
    settings = loaded.settings
    known = [name for name in settings.sources if settings.table_for(table, name) is not None]
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
    for lane in loaded.settings.lanes_for(table, source):
        if not lane.is_mirror:
            raise ConfigProblem(
                f"events of {table} go to the store of events, out of which none is taken; nothing was removed "
                f"({adapters.config_line(loaded, lane)})",
                next_step="Take that entry out of the config to forget the event elsewhere. What is stored stays: keep what "
                "must be forgotten out of events.",
            )


def _targets(loaded: Loaded, table: str, source: str) -> Iterator[Lane]:
    begun = FileRegister(parts.register_folder(loaded)).load(source).beginnings
    for lane in adapters.lanes(loaded, table, source):
        if not lane.refused and refused_id(lane) not in begun:
            yield lane


def replays(loaded: Loaded, table: str, source: str) -> Iterator[Lane]:
    """The targets that `replay` has made of the lanes of a table."""
    lanes = {lane.id: lane for lane in adapters.lanes(loaded, table, source)}
    for folder in _replay_folders(loaded):
        said = json.loads((folder / ASKED).read_text(encoding="utf-8"))
        if said["lane"] in lanes:
            lane = lanes[said["lane"]]
            yield replace(lane, id=f"{lane.sink}.{said['into']}", into=said["into"], policy=said["policy"] or lane.policy)


def _replay_folders(loaded: Loaded) -> list[Path]:
    return sorted(file.parent for file in (adapters.state_folder(loaded) / "replays").glob(f"*/{ASKED}"))


def _opened(loaded: Loaded, lane: Lane, opened: ExitStack) -> Any:
    sink: Any = adapters.sink_that_rewrites(loaded, lane.sink)
    opened.callback(sink.close)
    needed = "empty" if not lane.table else "erase"
    if not hasattr(sink, needed):
        raise ConfigProblem(
            f"sink {lane.sink!r} cannot take single rows away; nothing was removed",
            next_step="Take the lane out of the config, and remove the row with what the sink's own system has for that.",
        )
    return sink


def _spec(loaded: Loaded, table: str, source: str, targets: Sequence[tuple[Lane, Any]]) -> TableSpec:
    """The table with its key, as some lane has met it last; as far as the config tells it where none has."""
    for lane, sink in targets:
        versions = [version for version in remembered(sink, lane) if version.source.keys]
        if versions:
            return versions[-1].source
    keys = FileRegister(parts.register_folder(loaded)).load(source).keys.get(table, ())
    keys = next((lane.keys for lane in loaded.settings.lanes_for(table, source) if lane.keys), keys)
    if not keys:
        raise ConfigProblem(
            f"the key of table {table} is not known: none of its targets has rows of it yet",
            next_step="Say `keys` in its entry under `tables`, or run the pipeline first.",
        )
    return TableSpec(table, tuple(Column(name, pa.string()) for name in keys), tuple(keys))


def _texts(loaded: Loaded, spec: TableSpec, source: str, key: Sequence[str]) -> Iterator[str]:
    """The key in the form in which it is compared. Where the table masks a column its value may be given in clear too."""
    entry = loaded.settings.table_for(spec.name, source)
    private = {} if entry is None else dict(private_columns(entry, loaded.settings.defaults))
    for name, value in zip(spec.keys, key_values(spec, key), strict=True):
        (text,) = texts(pa.chunked_array([pa.array([value.as_py()], value.type)])).to_pylist()
        mask = private.get(name)
        if mask is not None and mask.kind == "hmac" and not HASHED.match(text):
            text = hmac.new(mask.key, text.encode(), "sha256").hexdigest()
        yield text


def _stays(loaded: Loaded, table: str, source: str) -> Iterator[str]:
    """What holds rows of the table, and is not changed by `forget`."""
    letters = loaded.settings.dead_letters
    topic = getattr(letters, "topic", None)
    if topic:
        yield (
            f"the Kafka topic {topic} of the dead letters cannot be edited: their bytes are gone once `replicator dlq "
            "purge` or the topic's retention has deleted what is before them too"
        )
    backfill = adapters.backfills_folder(loaded, source) / quote(table, safe="")
    if backfill.is_dir():
        yield f"{backfill} has what `replicator backfill` read of the table, until the next one replaces it"
    kept = adapters.state_folder(loaded) / "kept" / source
    if kept.is_dir():
        yield f"{kept} has what source {source} compares its table with: remove the row at the source"
    yield f"what source {source} itself keeps (topics, files, tables) is not touched; its records of the row are withheld"


@contextmanager
def _alone(loaded: Loaded) -> Iterator[None]:
    """Nobody writes targets of this pipeline and state folder meanwhile, nor starts to; a `replay` neither. Others are told
    by the sinks."""
    if ask_status(loaded) is not None:
        raise Fenced(
            "the daemon runs, and would not know what is forgotten",
            next_step="Stop it, forget, and start it again: it goes on where it stopped.",
        )
    with ExitStack() as held:
        pipeline = loaded.settings.pipeline
        for folder in (adapters.state_folder(loaded), *(one / pipeline for one in _replay_folders(loaded))):
            lock = InstanceLock(folder, pipeline)
            lock.hold()
            held.callback(lock.release)
        yield
