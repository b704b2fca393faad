"""`dlq replay`, put together: the parts of a pipeline without its stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from replicator.application.register import FileRegister
from replicator.application.replay import Replayed, of_no_source
from replicator.domain.errors import Fenced
from replicator.ports.dead_letters import Which
from replicator.settings import Loaded

from . import letters, parts
from .container import Container
from .daemon import ask_status


def replay(loaded: Loaded, which: Which) -> Replayed:
    """Try the letters again that are meant, under this configuration. Fenced while the daemon runs."""
    if ask_status(loaded) is not None:
        raise Fenced(
            "the daemon runs, and has the configuration of its start",
            next_step="Stop it, replay, and start it again: it goes on where it stopped.",
        )
    container = Container(loaded=loaded)
    lock = container.instance()
    lock.hold()
    try:
        with _opened(loaded, container) as pipelines:
            return _replayed(container, pipelines, which)
    finally:
        lock.release()


def _replayed(container: Any, pipelines: parts.Pipelines, which: Which) -> Replayed:
    by_source: dict[str, list[Any]] = {}
    # A letter from before its source was kept has no place either, and any pipeline says so.
    some = next(iter(pipelines))
    store = container.dead_letters()
    letters.refuse_unknown(store, which)
    for letter in store.read(which):
        source = letter.source or some
        if source not in pipelines:
            raise of_no_source(letter)
        by_source.setdefault(source, []).append(letter)
    done = Replayed()
    for source, found in by_source.items():
        done += pipelines[source].replay.run(found)
    return done


@contextmanager
def _opened(loaded: Loaded, container: Any) -> Iterator[parts.Pipelines]:
    """Every pipeline, with what it knew of its tables' keys, and the workers of the sinks at work; all closed afterwards."""
    pipelines: parts.Pipelines = container.pipelines()
    workers = container.workers()
    register = FileRegister(parts.register_folder(loaded))
    for name, pipeline in pipelines.items():
        pipeline.roster.keys.update(register.load(name).keys)
    for worker in workers.values():
        worker.start()
    try:
        yield pipelines
    finally:
        container.shared().abandon.set()
        for worker in workers.values():
            worker.finish()
            worker.join(None)
            worker.close_sink()
        for pipeline in pipelines.values():
            pipeline.place.source.close()
        container.dead_letters().close()
