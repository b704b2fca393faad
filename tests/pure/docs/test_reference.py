"""The generated pages and docs/llms.txt are those that the code generates, and the others name what it has."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields

import pytest
from paths import PROJECT

from adapters.delta.lake import HOME
from adapters.postgres.lane_state import META
from adapters.sinks.delta import transaction_table
from adapters.sinks.delta.event_log import DAY
from adapters.sinks.delta.event_store import COLUMNS as EVENT_COLUMNS
from adapters.sinks.delta.options import DEAD_LETTERS_FOLDER
from adapters.sinks.postgres.gold import REFRESHES
from replicator.application.operations.checkpoint import CHECKPOINTS_FOLDER
from replicator.application.quarantine import erasure_filter
from replicator.domain.event_log import EVENT_LOG
from replicator.domain.policy import plan
from replicator.ports.stores import DeadLetter
from replicator.settings.adapter_models import FORMATS
from replicator.wiring import daemon_client

REFERENCE = PROJECT / "docs" / "reference"
SCRIPT = "scripts/generate-reference.py"
GENERATOR = runpy.run_path(str(PROJECT / SCRIPT))
LAYOUT = (REFERENCE / "on-disk-layout.md").read_text()


def list_named(page):
    """All that the page has in backquotes."""
    return set(re.findall(r"`([^`\n]+)`", page))


@pytest.mark.parametrize("name", GENERATOR["PAGES"])
def test_committed_page_is_the_generated_one(name):
    assert (PROJECT / "docs" / name).read_text() == GENERATOR["render_page"](name), f"run python {SCRIPT}"


def test_layout_names_every_bookkeeping_column():
    names = {value for name, value in vars(plan).items() if name.isupper() and isinstance(value, str)}
    names |= {*plan.cdc_sequence_columns(2), *plan.end_sequence_columns(1), *plan.last_sequence_columns(1)}
    assert {name for name in names if name.startswith(("_cdc_", "_event_id", "__"))} - list_named(LAYOUT) == set()


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*(column.name for column in EVENT_LOG), DAY], id="event log"),
        pytest.param([column.name for column in EVENT_COLUMNS], id="event store"),
        pytest.param(transaction_table.SCHEMA.names, id="transactions"),
    ],
)
def test_layout_names_every_column(names):
    assert set(names) - list_named(LAYOUT) == set()


def test_page_of_dead_letters_names_every_field():
    page = (REFERENCE / "dead-letters.md").read_text()
    assert {field.name for field in fields(DeadLetter)} - list_named(page) == set()


@pytest.mark.parametrize("table", [*META.tables.values(), REFRESHES], ids=lambda table: table.name)
def test_layout_names_every_table_of_the_schema(table):
    row = next(line for line in LAYOUT.splitlines() if line.startswith(f"| `{table.name}` | ") and line.count("|") == 4)
    assert re.findall(r"`(\w+)`", row)[1:] == [column.name for column in table.columns]


@pytest.mark.parametrize(
    "name",
    [
        f"{HOME}/",
        f"{CHECKPOINTS_FOLDER.name}/PIPELINE/LANE/N",
        DEAD_LETTERS_FOLDER,
        erasure_filter.LIST,
        erasure_filter.KEY,
        daemon_client.FILE,
    ],
)
def test_layout_names_the_file(name):
    assert f"`{name}`" in LAYOUT


def test_every_key_is_in_an_example() -> None:
    """But formats, whose table is of their names."""
    page = (PROJECT / "docs" / "reference" / "configuration.md").read_text()
    keys = set(re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE)) - FORMATS.keys()
    assert len(keys) > 150
    examples = "\n".join(re.findall(r"```yaml.*?\n(.*?)```", page, re.DOTALL))
    assert {key for key in keys if not re.search(rf"\b{re.escape(key)}\b", examples)} == set()
