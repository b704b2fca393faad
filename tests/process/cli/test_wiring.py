"""What the wiring builds from a config: config lines of lanes, options of decoders, memory limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from replicator.cli.status import _make_view
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.settings import Loaded, load_settings
from replicator.wiring import adapters, build
from replicator.wiring.components import ConfiguredComponents
from replicator.wiring.container import PipelineSetup
from replicator.wiring.daemon import DaemonContainer
from replicator.wiring.diagnosis import diagnose

CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./log}
dead_letters: {path: ./letters}
defaults: {keys: [id], tombstones: delete}
tables:
  - match: public.*
    source: recorded
    to:
      - sink: lake
      - {sink: lake, policy: append, into: every}
  - match: public.[a-z]*rs
    source: recorded
    keys: [a, b]
    tombstones: ignore
    to:
      - sink: raw
      - sink: lake
"""


@pytest.fixture
def loaded_config(tmp_path: Path) -> Loaded:
    file = tmp_path / "config" / "replicator.yaml"
    file.parent.mkdir()
    file.write_text(CONFIG.replace("match: public.*\n", "match: public.orders\n"))
    return load_settings(file, environ={})


def test_each_lane_has_the_line_of_its_entry(loaded_config):
    lanes = ConfiguredComponents(loaded_config).resolve_lanes("public.orders")
    assert [(lane.id, lane.config_line.rpartition(":")[2]) for lane in lanes] == [
        ("lake.orders", "13"),
        ("lake.every", "14"),
    ]


def test_decoder_gets_keys_and_tombstones_with_defaults(loaded_config, monkeypatch):
    seen = []
    monkeypatch.setattr(adapters, "load_adapter", lambda *_: seen.append)
    adapters.build_decoder(loaded_config, "recorded")
    [given] = seen
    assert given.keys == {"public.orders": ("id",), "public.[a-z]*rs": ("a", "b")}
    assert given.tombstones == {"public.orders": "delete", "public.[a-z]*rs": "ignore"}
    monkeypatch.undo()
    assert adapters.build_decoder(loaded_config, "recorded")


def test_table_with_empty_keys_does_not_get_those_of_a_glob():
    from adapters.decoders.options import DebeziumJsonOptions

    options = DebeziumJsonOptions.model_validate(
        {"keys": {"public.*": ["id"], "public.orders": [], "public.[a-z]*s": ["b"], "public.items*": ["c"]}}
    )
    assert options.keys_of("public.orders") is None
    assert options.keys_of("public.other") == ("id",)
    assert options.keys_of("public.items") == ("c",), "the glob that fixes most characters, as the settings choose"


def test_rules_have_the_keys_of_the_table(loaded_config):
    rules = build.build_rules_for(loaded_config, "recorded")
    assert rules("public.orders").keys == ("id",) and rules("public.items") is None
    assert rules("public.buyers").keys == ("a", "b") and rules("public.buyers").event_logs == {"raw"}


@pytest.mark.parametrize(("memory", "batch"), [("1GiB", 32 << 20), ("60MiB", 10 << 20), ("1", 1)])
def test_batches_in_flight_stay_within_the_memory_limit(loaded_config, memory, batch):
    """Two sinks: the raw batch, the decoded batch, and per sink one batch at work and up to two in its queue."""
    file = loaded_config.files[0]
    bounded = load_settings(file, overrides=[f"limits.memory={memory}"], environ={})
    assert adapters.compute_batch_bytes(bounded) == batch
    options = PipelineSetup.from_config(bounded).build_options()
    assert options.hold_bytes == batch <= options.handover_bytes <= 2 * batch
    total = 4 * batch + 2 * options.handover_bytes
    assert total <= bounded.settings.limits.memory or options.handover_bytes == batch
    assert adapters.build_source(bounded, "recorded")._options.batch_bytes == batch


def test_batches_of_many_sources_stay_within_the_memory_limit(loaded_config):
    """For each source a raw batch, a decoded one, and one that waits for each sink; for each sink a batch at work."""
    file = loaded_config.files[0]
    bounded = load_settings(file, overrides=["limits.memory=60MiB"], environ={})
    setup = PipelineSetup.from_config(bounded)
    batch, many = adapters.compute_batch_bytes(bounded, 2, 7), replace(setup, inputs=[*setup.inputs] * 7)
    assert batch == (60 << 20) // (7 * (2 + 2) + 2)
    options = many.build_options()
    assert options.hold_bytes == options.handover_bytes == batch


def test_missing_and_empty_archives_are_reported(loaded_config):
    def diagnose_source() -> list[tuple[str, str]]:
        return [(d.severity, d.sentence) for d in diagnose(loaded_config) if d.subject == "source recorded"]

    folder = loaded_config.root / "archive"
    assert diagnose_source() == [("error", f"{folder} is not there.")]
    folder.mkdir()
    assert diagnose_source() == [("warning", f"{folder} has no file yet.")]
    (folder / "t.jsonl").write_text("")
    assert diagnose_source() == [("ok", f"{folder} has 1 file.")]


def test_missing_checks_are_warnings(loaded_config, monkeypatch):
    monkeypatch.setattr("replicator.wiring.diagnosis.list_names", lambda _: ())
    assert {d.severity for d in diagnose(loaded_config)} == {"warning"}


def test_check_that_cannot_be_loaded_does_not_hide_others(loaded_config, monkeypatch):
    from replicator.settings import plugins
    from replicator.wiring import diagnosis

    def break_loading(group, name):
        if name == "delta":
            raise EnvironmentProblem("needs a module", next_step="Install it.")
        return plugins.load_adapter(group, name)

    monkeypatch.setattr(diagnosis, "load_adapter", break_loading)
    found = {d.subject: d.severity for d in diagnose(loaded_config)}
    assert found["sink lake"] == "error" and found["machine"] in ("ok", "warning")


def test_notebook_finds_the_config_above_its_folder(caught_up, monkeypatch, tmp_path):
    from replicator.notebook import load_table

    monkeypatch.delenv("REPLICATOR_CONFIG", raising=False)
    (caught_up / "notebooks").mkdir(exist_ok=True)
    monkeypatch.chdir(caught_up / "notebooks")
    rows = load_table("products").num_rows
    assert rows
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPLICATOR_CONFIG", str(caught_up / "config" / "replicator.yaml"))
    assert load_table("products").num_rows == rows
    monkeypatch.delenv("REPLICATOR_CONFIG")
    with pytest.raises(ConfigProblem, match="cannot be read"):
        load_table("products")


def test_status_reports_a_config_changed_since_the_start(project):
    file = project / "config" / "replicator.yaml"
    report = DaemonContainer(loaded=load_settings(file)).views().status
    assert report()["config"] == {"files": [str(file)], "changed": []}
    assert "has changed" not in _make_view(report(), 100).plain
    file.write_text(file.read_text() + "# more\n")
    assert report()["config"]["changed"] == [str(file)]
    line = next(line for line in _make_view(report(), 100).plain.splitlines() if f"{file} has changed" in line)
    assert "restart" in line
