"""Shell completion of names: from the config, and from the register of a run."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete
from support.installed_box import install_box

from replicator.application.state_folder import FileRegister
from replicator.cli import main
from replicator.domain.errors import RejectCode
from replicator.domain.position import Position
from replicator.ports.stores import RegisterEntry

CONFIG = """\
pipeline: shop
state: ${STATE_FOLDER:-./state}
sources:
  shop: {format: debezium_json, transport: archive, path: ./archive}
  staff: {format: rows, transport: files, path: ./staff}
sinks:
  lake: {kind: delta, path: ./lake}
  raw: {kind: event_log, path: ./lake/cdc_events}
  target: {kind: postgres, dsn: "${NOBODY_SETS_THIS}"}
projections:
  sums: {sql: sums.sql, inputs: {orders: lake.orders}, sink: lake}
tables:
  - match: public.orders
    source: shop
    to: [{sink: raw}, {sink: lake}, {sink: lake, into: orders_history, policy: scd2}]
  - {match: "public.*", source: shop, to: [{sink: raw}, {sink: lake}]}
  - {match: '^staff_\\d', source: staff, to: [{sink: target, into: staff}]}
"""
HOSTILE = {"public.$(id)", "public.a b", "public.a;b", "public.a\nb"}
TABLES = ["public.customers", "public.orders"]
TARGET_LANES = ["lake.customers", "lake.orders", "lake.orders_history", "target.staff"]
LANES = sorted([*TARGET_LANES, "raw.shop"])


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A project in which a run has seen a table that a glob matches."""
    for name in ("REPLICATOR_CONFIG", "REPLICATOR_ENV", "STATE_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    save_seen(tmp_path / "state", {"public.customers", *HOSTILE}, {"lake.customers", "raw.shop", *HOSTILE})
    return tmp_path


def save_seen(state, tables, lanes):
    seen = RegisterEntry(dict.fromkeys(tables, frozenset({"t"})), dict.fromkeys(lanes, Position()))
    FileRegister(state / "shop" / "sources").save("shop", seen)


def list_completions(line):
    """The completions of the last word of a line, in which each word has a space behind it."""
    *words, incomplete = line.split(" ")
    shell = ShellComplete(main, {}, "replicator", "_REPLICATOR_COMPLETE")
    return [item.value for item in shell.get_completions(words, incomplete)]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        *((f"lanes {action} ", LANES) for action in ("pause", "resume", "resync", "skip")),
        *(
            (f"{command} ", TABLES)
            for command in ("audit", "backfill", "diff", "forget", "history", "plan", "replay", "snapshot")
        ),
        *((f"{command} ", sorted(TABLES + TARGET_LANES)) for command in ("drop", "query", "schema history")),
        *((f"{command} ", sorted([*TABLES, *TARGET_LANES, "raw", "dead_letters"])) for command in ("compact", "vacuum")),
        *((f"{command} orders --lane ", TARGET_LANES) for command in ("replay", "snapshot")),
        *((f"{command} --source ", ["shop", "staff"]) for command in ("backfill orders", "forget orders", "record t f")),
        ("inspect ", ["shop", "staff"]),
        ("diff orders --sink ", ["lake", "target"]),
        ("refresh ", ["sums"]),
        ("dlq list --lane ", LANES),
        ("dlq explain t-0-1 --lane ", LANES),
        ("dlq export --table ", TABLES),
        ("dlq purge --code ", RejectCode.list_all()),
        ("compact lake.orders public.c", ["public.customers"]),
    ],
)
def test_names_are_completed(line, names):
    assert list_completions(line) == names


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("lanes pause lake.orders", ["lake.orders", "lake.orders_history"]),
        ("lanes pause x", []),
        ("query o", ["orders"]),
        ("dlq list --table o", []),
        ("dlq list --code MAL", ["MALFORMED"]),
        ("compact r", ["raw"]),
        ("inspect st", ["staff"]),
        ("schema h", ["history"]),
    ],
)
def test_only_names_with_the_prefix_are_completed(line, names):
    assert list_completions(line) == names


def test_config_and_overlay_of_the_line_have_the_names(project, monkeypatch):
    folder = project / "config" / "environments"
    folder.mkdir()
    (folder / "prod.yaml").write_text("sources: {staff: null, branch: {format: rows, transport: files, path: ./b}}\n")
    other = project / "config" / "other.yaml"
    other.write_text(CONFIG.replace("staff:", "people:"))
    assert list_completions("inspect --env ") == ["prod"]
    assert list_completions("inspect --env prod ") == ["branch", "shop"]
    assert list_completions("inspect -c config/other.yaml ") == ["people", "shop"]
    assert list_completions("inspect --set sources.staff=null ") == ["shop"]
    monkeypatch.setenv("REPLICATOR_CONFIG", str(other))
    assert list_completions("inspect ") == ["people", "shop"]
    monkeypatch.setenv("REPLICATOR_ENV", "prod")
    assert list_completions("inspect b") == ["branch"]


def test_tables_are_those_of_the_state_folder_of_the_config(project, monkeypatch):
    save_seen(project / "elsewhere", {"public.products"}, set())
    monkeypatch.setenv("STATE_FOLDER", "./elsewhere")
    assert list_completions("audit ") == ["public.orders", "public.products"]
    config = project / "config" / "replicator.yaml"
    config.write_text(CONFIG.removeprefix("pipeline: shop\n"))
    assert list_completions("audit ") == ["public.orders", "public.products"]


@pytest.mark.parametrize("register", ["", "{", "[]", '{"topics": 1}'])
def test_broken_register_leaves_the_names_of_the_config(project, register):
    (project / "state" / "shop" / "sources" / "shop.json").write_text(register)
    assert list_completions("audit ") == ["public.orders"]


@pytest.mark.parametrize(
    "text",
    ["", "tables: [", "- a", "tables: 3\nsinks: {}\nsources: {}", CONFIG.replace("kind: delta", "- x"), "\0", "a: &a [*a]"],
)
@pytest.mark.parametrize("line", ["lanes pause ", "audit ", "compact ", "refresh ", "replay orders --lane ", "run --env "])
def test_broken_config_has_no_names(project, capfd, text, line):
    (project / "config" / "replicator.yaml").write_text(text)
    assert list_completions(line) == []
    assert capfd.readouterr() == ("", "")


def test_missing_config_has_no_names(capfd):
    assert list_completions("lanes pause -c config/nowhere.yaml ") == []
    assert list_completions("audit --env nowhere --set tables=null ") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["run -c conf", "inspect arch", "record arch"])
def test_files_are_left_to_the_shell(line):
    *words, incomplete = line.split(" ")
    shell = ShellComplete(main, {}, "replicator", "_REPLICATOR_COMPLETE")
    assert [(item.type, item.value) for item in shell.get_completions(words, incomplete)] == [("file", incomplete)]


def test_event_log_of_a_package_is_no_target(project, tmp_path_factory, monkeypatch):
    package = tmp_path_factory.mktemp("package")
    install_box(package)
    monkeypatch.syspath_prepend(str(package))
    file = project / "config" / "replicator.yaml"
    file.write_text(file.read_text().replace("kind: event_log", "kind: box_log"))
    assert list_completions("compact r") == ["raw"]
    assert list_completions("lanes pause raw") == ["raw.shop"]
