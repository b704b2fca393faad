"""Checks between the parts of a config, and of single values."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.adapter_options import SourceOptions
from replicator.settings import Plugins, adapter_models, plugins
from replicator.settings.adapter_models import FORMATS, SINKS, SOURCES
from replicator.settings.checks import SHARED_TARGET_HINT
from replicator.wiring.adapters import make_options

ACROSS = [
    ("      - sink: lake\n  - match", "      - sink: lak\n  - match", "unknown_sink", "did you mean 'lake'?"),
    ("      - sink: lake\n  - match", "      - sink: zzz\n  - match", "unknown_sink", "known: lake, raw, target"),
    (
        "      - sink: lake\n  - match",
        "      - sink: event_store\n  - match",
        "unknown_sink",
        "add one, for example event_store: {path: ./deltalake/events}",
    ),
    ("    source: recorded", "    source: recordd", "unknown_source", "did you mean 'recorded'?"),
    ("  - match: audit.log\n    source: recorded", "  - match: public.orders\n    source: shop", "duplicate_match", ""),
    (
        "  - match: public.orders\n",
        "  - match: '*.orders'\n",
        "same_target",
        "leave 'into' out, name one table in 'match', or take {1} of a regular expression (^a_([0-9]+)$) into it"
        f"; {SHARED_TARGET_HINT}",
    ),
    (
        "        into: orders_now",
        "        into: log",
        "same_target",
        f"give one of them another 'into'; {SHARED_TARGET_HINT}",
    ),
    ("    to:\n      - sink: target\n\n", "    to: []\n\n", "empty", "name at least one sink"),
    ("      - sink: raw\n", "      - sink: raw\n        policy: append\n", "inapplicable", "remove it"),
    ("        policy: scd1", "        policy: append", "inapplicable", "remove it"),
    ("    path: ./lake/cdc_events", "    path: ./lake/", "same_place", "use one sink for both"),
    ("    path: ./lake\n", "    path: ./lake\n    engines: [spark]\n", "engine", "change 'engine', or the sink's 'engines'"),
    ("        policy: scd1", "        policy: scd1\n        keys: [a]", "different_keys", "write 'keys' once, in tables[1]"),
    ("        policy: scd1", "        tombstones: ignore", "different_keys", "write 'tombstones' once, in tables[1]"),
    ("        policy: scd1", "        policy: scd1\n        stored_as_scd_type: 2", "contradiction", None),
    ("        policy: scd1", "        policy: scd1\n        track_history_column_list: [v]", "inapplicable", None),
]


@pytest.mark.parametrize(("old", "new", "code", "suggestion"), ACROSS)
def test_contradictions_between_parts(folder, old, new, code, suggestion):
    line = folder.change(old, new)
    found = [f for f in folder.findings() if f.code == code]
    assert len(found) == 1
    assert abs(found[0].line - line) <= 9
    assert suggestion is None or found[0].suggestion == suggestion


def test_equally_specific_overlapping_globs_are_refused(folder):
    folder.change(
        "  - match: audit.log\n    source: recorded\n    policy: append\n", "  - match: '*.public'\n    source: shop\n"
    )
    text = folder.file.read_text()
    assert folder.only().code == "tied_match"
    assert "'*.public' and 'public.*'" in folder.only().message
    folder.write(text.replace("'*.public'", "'*.publics'"))
    assert folder.load().settings.find_table("public.publics").match == "*.publics"


def test_equally_specific_disjoint_globs_are_accepted(folder):
    tables = "[{match: a.*, source: shop, to: [{sink: lake}]}, {match: b.*, source: shop, to: [{sink: lake}]}]"
    assert len(folder.load(overrides=[f"tables={tables}"]).settings.tables) == 2


def test_two_entries_of_one_table_with_one_target_are_refused(folder):
    folder.change("      - sink: raw\n      - sink: lake\n", "      - sink: lake\n      - sink: lake\n")
    assert folder.only().code == "same_target"


def test_invalid_parts_do_not_hide_contradictions(folder):
    folder.change('    topics: ["cdc.public.*"]', "    topics: 5")
    folder.write(
        folder.file.read_text().replace("        into: orders_now", "        into: [x]").replace("sink: raw", "sink: rw")
    )
    assert sorted(f.code for f in folder.findings()) == ["type", "type", "unknown_sink"]


def test_both_column_lists_are_refused(folder):
    folder.change("    keys: [id]", "    column_list: [a]\n    except_column_list: [b]")
    assert folder.only().code == "contradiction"


VALUES = [
    ("pipeline: shop", "pipeline: my shop", "name"),
    ("pipeline: shop", "pipeline: 5", "type"),
    ("pipeline: shop", "pipeline: ../up", "name"),
    ("  lake:\n", "  my lake:\n", "name"),
    ("    kind: delta", "    kind: [delta]", "type"),
    ("    transport: kafka", "    transport: {}", "type"),
    ('    topics: ["cdc.public.*"]', "    topics: cdc.public.*", "type"),
    ('    topics: ["cdc.public.*"]', "    topics: []", "type"),
    ('    topics: ["cdc.public.*"]', '    topics: ["cdc.[a"]', "glob"),
    ('    topics: ["cdc.public.*"]', "    topics: [1]", "type"),
    ("  - match: public.orders", "  - match: 'public.[ab'", "glob"),
    ("  - match: public.orders", "  - match: ' public.orders'", "glob"),
    ("    bootstrap_servers: localhost:29092", "    bootstrap_servers: localhost", "server"),
    ("    bootstrap_servers: localhost:29092", "    bootstrap_servers: 'a:1,,b:2'", "server"),
    ("    start_from: earliest", "    start_from: yesterday", "start"),
    ("    start_from: earliest", "    start_from: 2026-01-01T00:00:00", "start"),
    ("    start_from: earliest", "    start_from: 5", "start"),
    ("      client.rack: a", "      group.id: a", "option"),
    ("      client.rack: a", "      enable.auto.commit: true", "option"),
    ("      client.rack: a", "      sasl.password: a", "option"),
    ("      client.rack: a", "      client.rack: [a]", "type"),
    ("      security.protocol: SASL_SSL", "      client.rack: x", "option"),
    ("    path: ./lake\n", "    path: ../lake\n", "path_escapes"),
    ("    path: ./lake\n", "    path: ./a/../../lake\n", "path_escapes"),
    ("    path: ./lake\n", "    path: s3://bucket/../other\n", "path_escapes"),
    ("    path: ./lake\n", "    path: ~/lake\n", "path"),
    ("    path: ./lake\n", "    path: ''\n", "path"),
    ("    path: ./lake\n", '    path: "a\\0b"\n', "path"),
    ("    path: ./lake\n", "    path: http://h/x\n", "path"),
    ("    path: ./lake\n", "    path: file://host/x\n", "path"),
    ("    path: ./lake\n", "    path: gs://bucket/x\n", "not_yet_supported"),
    ('    topics: ["cdc.public.*"]', "    topics: ['^cdc.(a']", "glob"),
    ("    path: ./lake/cdc_events", "    path: ./x\n    dsn: postgresql://h/d", "place"),
    ("    dsn: postgresql://u:p@h:5432/d", "    dsn: postgresql://h", "dsn"),
    ("    dsn: postgresql://u:p@h:5432/d", "    dsn: host=h dbname=d", "dsn"),
    ("    schema: mirror", f"    schema: {'x' * 64}", "type"),
    ("        into: orders_now", "        into: ../x", "into"),
    ("        into: orders_now", "        into: _replicator", "into"),
    ("        into: orders_now", "        into: ..", "into"),
    ("        into: orders_now", "        into: ''", "into"),
    ("    keys: [id]", "    keys: []", "type"),
    ("    keys: [id]", "    keys: [id, id]", "contradiction"),
    ("    keys: [id]", "    keys: id", "type"),
    ("        stored_as_scd_type: 1", "        stored_as_scd_type: 3", "value"),
    ("        stored_as_scd_type: 1", "        policy: append\n        stored_as_scd_type: 1", "contradiction"),
    ("      client.rack: a", "      client.rack: a\n    connect: {url: localhost, connector: c}", "url"),
    ("      client.rack: a", "      client.rack: a\n    connect: {url: 'http://u:p@h', connector: c}", "url"),
    *(
        ("      client.rack: a", f"      client.rack: a\n    connect: {{url: '{url}', connector: c}}", "url")
        for url in ("http://h:port", "http://h:99999", "http://[h", "http://h/a b", "http://h/é", "http://h:1 ")
    ),
    ("      client.rack: a", "      client.rack: a\n    connect: {url: 'http://h:1', conector: c}", "unknown_key"),
    ("      client.rack: a", "      client.rack: a\n    database: {dsn: h, publication: p, slot: s}", "dsn"),
    ("      client.rack: a", "      client.rack: a\n    database: {dsn: postgresql://h/d, slot: s}", "database"),
    ("      client.rack: a", "      client.rack: a\n    database: {dsn: postgresql://h/d, publication: p, slot: S}", "name"),
    ("      client.rack: a", "      client.rack: a\n    database: 5", "type"),
    ("  depth: 64", "  depth: 1", "value"),
    ("  depth: 64", "  depth: 501", "value"),
    ("  columns: 4096", "  columns: 0", "value"),
    ("  depth: 64", "  depth: true", "type"),
    ("  depth: 64", "  depth: 1.5", "type"),
    ("  memory: 1GiB", "  memory: 1 lot", "size"),
    ("  memory: 1GiB", "  memory: -1", "value"),
    ("  address: 127.0.0.1:8090\n  token: open-sesame", "  address: 0.0.0.0:8090", "open"),
    ("  address: 127.0.0.1:8090\n  token: open-sesame", "  address: 127.evil.example:8090", "open"),
    ("  address: 127.0.0.1:8090\n  token: open-sesame", "  address: 127.0.0.1.evil.example:8090", "open"),
    ("  token: open-sesame", "  token: ''", "secret"),
    ("  token: open-sesame", "  token: ' '", "secret"),
    ("  address: 127.0.0.1:8090", "  address: localhost", "server"),
    ("limits:\n", "limits: 5\nold_limits:\n", "type"),
]


@pytest.mark.parametrize(("old", "new", "code"), VALUES)
def test_invalid_values_are_refused(folder, old, new, code):
    line = folder.change(old, new)
    found = [f for f in folder.findings() if f.code == code]
    assert len(found) == 1, [str(f) for f in folder.findings()]
    assert line - 2 <= found[0].line <= line + 1
    assert "Input" not in found[0].message, "the words of pydantic"


def test_password_of_the_source_database_is_never_shown(folder):
    folder.change(
        "      client.rack: a", "      client.rack: a\n    database: {dsn: 'postgresql://u:pw@h/d', publication: p, slot: s}"
    )
    loaded = folder.load()
    assert loaded.settings.sources["shop"].database.slot == "s"
    assert "pw" not in f"{loaded.to_redacted()} {loaded.settings!r}"


@pytest.mark.parametrize("key", ["sources", "sinks", "tables"])
def test_missing_key_is_reported(folder, key):
    findings = folder.findings(overrides=[f"{key}=null"])
    assert f"missing key '{key}' at the top level" in {f.message for f in findings}


@pytest.mark.parametrize("part", ["sources", "sinks", "tables"])
def test_empty_parts_are_refused(folder, part):
    empty = "[]" if part == "tables" else "{}"
    assert f"{part} is empty" in {f.message for f in folder.findings(overrides=[f"{part}={empty}"])}


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("1KiB", 1024), ("1.5 MiB", 1572864), ("2GB", 2_000_000_000), ("3k", 3000), ("16MiB", 2**24)],
)
def test_sizes(folder, text, value):
    assert folder.load(overrides=[f"limits.memory='{text}'"]).settings.limits.memory == value


def test_unused_part_is_a_warning(folder):
    line = folder.change("  target:\n    kind", "  unused: {kind: delta, path: /x}\n  target:\n    kind")
    (warning,) = folder.load().warnings
    assert (warning.severity, warning.line, warning.message) == ("warning", line, "no table uses sink 'unused'")


@pytest.mark.parametrize(
    ("old", "key", "family"),
    [
        ("    kind: postgres\n", "kind", SINKS),
        ("    transport: kafka\n", "transport", SOURCES),
        ("    format: debezium_json\n", "format", FORMATS),
    ],
)
def test_allowed_values_are_listed_once(folder, old, key, family):
    folder.plugins = Plugins(sinks=frozenset(SINKS), transports=frozenset(SOURCES), formats=frozenset(FORMATS))
    text = folder.file.read_text()
    folder.write(text.replace(old, f"    {key}: zzzzzzzz\n", 1))
    [finding] = [one for one in folder.findings() if one.code == "unknown_value"]
    assert finding.suggestion == f"one of {', '.join(family)}"


def test_every_own_decoder_has_a_format():
    ours = (point for point in entry_points(group="replicator.decoders") if point.value.startswith("adapters."))
    assert {point.name for point in ours} == set(FORMATS)


def test_adapters_of_other_packages_have_their_own_keys(folder):
    folder.change("    kind: postgres\n", "    kind: mysql\n")
    assert folder.only().code == "unknown_value"
    folder.plugins = Plugins(sinks=frozenset({"mysql"}), transports=frozenset({"nats"}), formats=frozenset({"xml"}))
    overrides = ["sources.other={format: xml, transport: nats, subject: a}", "tables[2].source=other"]
    settings = folder.load(overrides=overrides).settings
    assert settings.sinks["target"].model_extra == {"dsn": "postgresql://u:p@h:5432/d", "schema": "mirror"}
    assert settings.sources["other"].model_extra == {"subject": "a"}


def test_keys_of_other_packages_are_passed_to_their_adapter(folder):
    """Also the keys that the pipeline adds for the adapters of this package."""
    folder.plugins = Plugins(transports=frozenset({"nats"}), formats=frozenset({"xml"}))
    own = "session: one, stores: [a], batch_records: 7, subject: a"
    source = folder.load(overrides=[f"sources.other={{format: xml, transport: nats, {own}}}", "tables[2].source=other"])
    given = make_options(source.settings.sources["other"], {"batch_bytes": 5})
    assert given == {"session": "one", "stores": ["a"], "batch_records": 7, "subject": "a", "batch_bytes": 5}


def test_broken_package_stops_only_pipelines_that_use_it(folder, monkeypatch):
    monkeypatch.setitem(adapter_models.BROKEN_SOURCES, "nats", EnvironmentProblem("The options of 'nats' cannot be loaded"))
    assert folder.load()
    folder.plugins = Plugins(transports=frozenset({"nats"}), formats=frozenset({"xml"}))
    finding = folder.only(overrides=["sources.other={format: xml, transport: nats, subject: a}", "tables[2].source=other"])
    assert finding.code == "broken_adapter" and "'nats'" in finding.message


@pytest.mark.parametrize(
    ("old", "broken", "where"),
    [
        ("    kind: postgres\n", adapter_models.BROKEN_SINKS, "    kind: odd\n"),
        ("    format: debezium_json\n", adapter_models.BROKEN_FORMATS, "    format: odd\n"),
    ],
)
def test_model_that_cannot_be_imported_is_a_finding_with_its_line(folder, monkeypatch, old, broken, where):
    problem = EnvironmentProblem("The options of 'odd' cannot be loaded", next_step="Install another version.")
    monkeypatch.setitem(broken, "odd", problem)
    text = folder.file.read_text().replace(old, where, 1)
    folder.write(text)
    finding = folder.only()
    assert finding.line == text[: text.index(where)].count("\n") + 1
    assert "cannot be loaded" in finding.message and finding.suggestion == "Install another version."


def test_store_that_cannot_be_imported_stops_every_pipeline(monkeypatch):
    monkeypatch.setitem(adapter_models.BROKEN_STORES, "dead_letters", EnvironmentProblem("The options cannot be loaded"))
    with pytest.raises(EnvironmentProblem, match="cannot be loaded"):
        adapter_models.get_store_model("dead_letters")


def test_error_of_a_broken_package_names_it(monkeypatch):
    known = plugins.load_adapter
    broken = {"nats": RuntimeError("x"), "odd": str}
    monkeypatch.setattr(adapter_models, "list_names", lambda group: ("kafka", *broken))

    def load(group: str, name: str) -> object:
        if name not in broken:
            return known(group, name)
        if isinstance(broken[name], Exception):
            raise broken[name]
        return broken[name]

    monkeypatch.setattr(adapter_models, "load_adapter", load)
    found, errors = adapter_models.load_models("replicator.source_options", SourceOptions)
    assert list(found) == ["kafka"]
    assert "'nats'" in str(errors["nats"]) and "RuntimeError" in str(errors["nats"])
    assert "'odd'" in str(errors["odd"]) and "SourceOptions" in str(errors["odd"])


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:65536"])
def test_invalid_port_is_refused(folder, address):
    finding = folder.only(overrides=[f"http.address={address}"])
    assert "http.address must be HOST:PORT" in finding.message


def test_broker_needs_a_port(folder):
    assert folder.load(overrides=["http.address=127.0.0.1:0"])
    (name,) = [n for n, s in folder.load().settings.sources.items() if s.transport == "kafka"][:1]
    assert "HOST:PORT" in folder.only(overrides=[f"sources.{name}.bootstrap_servers=a:1,b:0"]).message


@pytest.mark.parametrize(
    ("match", "warned"), [("t", True), ("t*", False), ("t?x", False), ("[ab]c", True), ("public.t", False), ("*", False)]
)
def test_match_without_a_schema(folder, match, warned):
    text = f"""pipeline: p
sources:
  s: {{format: debezium_json, transport: archive, path: ./a}}
sinks:
  l: {{kind: delta, path: ./l}}
dead_letters: {{path: ./d}}
tables:
  - {{match: "{match}", source: s, to: [{{sink: l}}]}}
"""
    folder.write(text)
    warnings = folder.load().warnings
    assert [(w.code, w.line, w.suggestion) for w in warnings] == (
        [("bare_match", 8, f"write '*.{match}'")] if warned else []
    )
