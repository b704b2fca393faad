"""`event_store: {kind: ...}` of an installed package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.installed_box import install_box

from replicator.domain.errors import ConfigProblem
from replicator.domain.events import NewEvent
from replicator.settings import ConfigError, Loaded
from replicator.wiring.adapters import make_emitter, open_store
from replicator.wiring.configuration import list_plugins

Read = Callable[..., Loaded]


@pytest.fixture
def read(folder: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads the config with this event store, in an environment with the package."""
    package = tmp_path_factory.mktemp("package")
    install_box(package)
    monkeypatch.syspath_prepend(str(package))
    folder.plugins = list_plugins()
    return lambda store: folder.load(overrides=[f"event_store={store}"])


def test_events_are_stored_in_the_configured_store(read: Read, tmp_path: Path) -> None:
    loaded = read(f"{{kind: box_events, path: {tmp_path}/events}}")
    event = NewEvent(event_id="1", event_type="placed", aggregate_type="order", aggregate_id="7", event_data={})
    make_emitter(loaded).emit([event])
    assert [event.aggregate_id for event in open_store(loaded).read("order")] == ["7"]
    assert (tmp_path / "events").is_file()


def test_adapter_checks_its_keys(read: Read) -> None:
    with pytest.raises(ConfigProblem, match="the keys of a box are path, and not size"):
        open_store(read("{kind: box_events, size: 3}"))


def test_unknown_kind_is_a_finding(read: Read) -> None:
    with pytest.raises(ConfigError) as refused:
        read("{kind: bin_events, path: ./events}")
    [finding] = refused.value.findings
    assert (finding.code, finding.suggestion) == ("unknown_value", "did you mean 'box_events'?")


def test_kind_without_the_package_is_an_unknown_key(folder: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        folder.load(overrides=["event_store={kind: box_events, path: ./events}"])
    [finding] = refused.value.findings
    assert finding.message == "unknown key 'kind' in event_store"
