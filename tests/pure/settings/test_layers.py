"""File, overlay and `--set`: their precedence, and the origin of every value."""

from __future__ import annotations

import pytest

from replicator import settings


def test_precedence_is_set_then_overlay_then_file_then_default(folder):
    folder.write("limits: {depth: 10, columns: 11}\n", "environments/prod.yaml")
    limits = folder.load("prod", ["limits.columns=12"]).settings.limits
    assert (limits.memory, limits.depth, limits.columns) == (2**30, 10, 12)
    folder.change("  columns: 4096\n", "")
    assert folder.load().settings.limits.columns == 4096


def test_mappings_merge_and_lists_replace(folder):
    folder.write(
        "sinks: {lake: {path: /srv/lake}}\ntables: [{match: a.b, source: shop, to: [{sink: lake}]}]\n",
        "environments/prod.yaml",
    )
    settings = folder.load("prod").settings
    assert settings.sinks["lake"].path == "/srv/lake"
    assert settings.sinks["lake"].kind == "delta"
    assert [table.match for table in settings.tables] == ["a.b"]


def test_null_removes(folder):
    overlay = "sinks: {target: null, raw: null}\ntables: [{match: a.b, source: shop, to: [{sink: lake}]}]\n"
    folder.write(overlay, "environments/dev.yaml")
    assert set(folder.load("dev").settings.sinks) == {"lake"}
    assert "recorded" not in folder.load("dev", ["sources.recorded=null"]).settings.sources


def test_removal_of_a_missing_key_is_a_finding(folder):
    file = folder.write("sinks:\n  tarjet: null\n", "environments/dev.yaml")
    finding = folder.only("dev")
    assert (finding.file, finding.line, finding.suggestion) == (str(file), 2, "did you mean 'target'?")


def test_option_wins_over_the_environment_variable(folder):
    folder.write("limits: {depth: 5}\n", "environments/one.yaml")
    folder.write("limits: {depth: 2}\n", "environments/two.yaml")
    folder.environ["REPLICATOR_ENV"] = "one"
    assert folder.load().settings.limits.depth == 5
    assert folder.load("two").settings.limits.depth == 2
    folder.environ["REPLICATOR_ENV"] = ""
    assert folder.load().settings.limits.depth == 64


@pytest.mark.parametrize("name", ["prd", "../replicator", "", "/etc/passwd", "a b"])
def test_unknown_environment_has_a_suggestion(folder, name):
    folder.write("limits: {depth: 5}\n", "environments/prod.yaml")
    if not name:
        assert folder.load(name).settings.limits.depth == 64
        return
    finding = folder.only(name)
    assert finding.code == "unknown_environment"
    assert "prod" in finding.suggestion


def test_finding_in_an_overlay_has_its_line(folder):
    file = folder.write("# a comment\nsources:\n  shop:\n    topicz: [x]\n", "environments/prod.yaml")
    finding = folder.only("prod")
    assert (finding.file, finding.line) == (str(file), 4)


def test_findings_of_file_overlay_and_set_are_reported_together(folder):
    folder.change("  depth: 64", "  depht: 64")
    folder.write("a: 1\nb: [\n", "environments/prod.yaml")
    folder.write("state: 5\nstate: 6\nhttp: {adress: x}\n", "environments/dev.yaml")
    codes = sorted(finding.code for finding in folder.findings("dev", ["engine=locl", "nonsense"]))
    assert codes == ["duplicate_key", "set_syntax", "type", "unknown_key", "unknown_key", "unknown_value"]
    assert {finding.code for finding in folder.findings("prod")} == {"yaml", "unknown_key"}


@pytest.mark.parametrize(
    ("assignment", "read", "expected"),
    [
        ("limits.depth=7", lambda s: s.limits.depth, 7),
        ("limits.memory=2GiB", lambda s: s.limits.memory, 2**31),
        ("sources.shop.topics=[a, b]", lambda s: s.sources["shop"].topics, ["a", "b"]),
        ("tables[1].to[0].into=x", lambda s: s.tables[1].to[0].into, "x"),
        ("tables.1.to.0.into=x", lambda s: s.tables[1].to[0].into, "x"),
        ("tables[1].keys[0]=key", lambda s: s.tables[1].keys, ["key"]),
        ('sources.shop.options."linger.ms"=5', lambda s: s.sources["shop"].options["linger.ms"], "5"),
        ("sinks.new={kind: delta, path: /x}", lambda s: s.sinks["new"].path, "/x"),
        (
            "sinks.target.dsn=postgresql://h/d?a=b",
            lambda s: s.sinks["target"].dsn.get_secret_value(),
            "postgresql://h/d?a=b",
        ),
        ("sources.shop.group_id='1'", lambda s: s.sources["shop"].group_id, "1"),
        ("state=${HOME_OF_STATE}/s", lambda s: s.state, "/home/s"),
    ],
)
def test_set(folder, assignment, read, expected):
    folder.environ["HOME_OF_STATE"] = "/home"
    assert read(folder.load(overrides=[assignment]).settings) == expected


@pytest.mark.parametrize(
    ("assignment", "code", "file"),
    [
        ("engine", "set_syntax", "--set"),
        ("=x", "set_syntax", "--set "),
        ("a..b=x", "set_syntax", "--set a..b"),
        ("tables[9].source=x", "set_path", "--set tables[9].source"),
        ("tables.name.source=x", "set_path", "--set tables.name.source"),
        ("engine.x=1", "set_path", "--set engine.x"),
        ("limits.depth=[1", "yaml", "--set limits.depth"),
        ("limits.depth=none", "type", "--set limits.depth"),
        ("limits.depht=1", "unknown_key", "--set limits.depht"),
        ("limits.x.y=1", "unknown_key", "--set limits.x"),
        ("sinks.lake.dsn=postgresql://h/d", "unknown_key", "--set sinks.lake.dsn"),
    ],
)
def test_invalid_set_option_is_a_finding_with_its_origin(folder, assignment, code, file):
    finding = folder.only(overrides=[assignment])
    assert finding.code == code
    assert finding.line is None
    assert finding.file.strip().startswith(file.strip())


def test_last_set_option_wins(folder):
    assert folder.load(overrides=["limits.depth=9", "limits.depth=2"]).settings.limits.depth == 2


def test_origin_of_a_value(folder):
    file = folder.write("limits: {depth: 10}\n", "environments/prod.yaml")
    loaded = folder.load("prod", ["limits.columns=12"])
    assert loaded.describe_origin("limits", "depth") == f"{file}:1"
    assert loaded.describe_origin("limits", "columns") == "--set limits.columns"
    assert loaded.describe_origin("sinks", "lake", "kind") == f"{folder.file}:23"
    assert loaded.describe_origin("sinks", "lake", "engines") == f"{folder.file}:22"
    assert loaded.files == (folder.file, file)


def test_file_urls_are_paths(folder):
    assert folder.load(overrides=["sinks.lake.path=file:///srv/my%20lake"]).settings.sinks["lake"].path == "/srv/my lake"


def test_relative_paths_start_at_the_project_folder(folder, monkeypatch):
    assert folder.load().settings.sinks["lake"].path == str(folder.root / "lake")
    monkeypatch.chdir(folder.file.parent)
    folder.file = folder.file.relative_to(folder.file.parent)
    assert folder.load().settings.state == str(folder.root / "state")


def test_names_of_the_package_are_imported_on_first_use():
    assert [name for name in settings.__all__ if not hasattr(settings, name)] == []
    assert not hasattr(settings, "load_nothing")
