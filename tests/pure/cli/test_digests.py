"""Config changes that give a lane other rules, and config changes that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.settings import LaneSettings, Loaded
from replicator.wiring.build import digest_lane, digest_rules
from replicator.wiring.configuration import read_config

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"
PASSWORD = "first"
CONFIG = f"""\
pipeline: shop
sources:
  shop:
    format: debezium_avro
    transport: kafka
    bootstrap_servers: localhost:9092
    topics: [cdc.public.items]
    security: {{sasl.password: {PASSWORD}}}
    registry: {{url: "http://localhost:8081", user: reader, password: {PASSWORD}}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./log}}
dead_letters: {{path: ./dead_letters}}
tables:
  - match: public.items
    source: shop
    columns: {{name: {{mask: hmac, key: {KEY}}}}}
    to:
      - {{sink: raw}}
      - {{sink: lake, into: items, columns: {{mail: {{mask: hmac, key: {KEY}}}}}}}
      - {{sink: lake, into: more}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "replicator.yaml"


def load_lane(config: Path, old: str = "", new: str = "") -> tuple[Loaded, LaneSettings]:
    assert old in CONFIG
    config.write_text(CONFIG.replace(old, new) if old else CONFIG)
    found = read_config(config, None, ())
    return found, next(lane for lane in found.settings.resolve_lanes("public.items") if lane.into == "items")


@pytest.mark.parametrize("column", ["name", "mail"])
def test_another_mask_key_is_another_rule(config: Path, column: str) -> None:
    """For a mask of the table and of the lane alone."""
    before = load_lane(config)
    after = load_lane(config, f"{column}: {{mask: hmac, key: {KEY}", f"{column}: {{mask: hmac, key: {OTHER}")
    assert digest_rules(*before) != digest_rules(*after) and digest_lane(*before) != digest_lane(*after)


@pytest.mark.parametrize(
    ("old", "new"),
    [(PASSWORD, "second"), ("http://localhost:8081", "http://localhost:8082"), ("into: more", "into: less")],
)
def test_locations_of_records_and_schemas_are_no_rule(config: Path, old: str, new: str) -> None:
    """Nor rules of other lanes."""
    before, after = load_lane(config), load_lane(config, old, new)
    assert digest_rules(*before) == digest_rules(*after) and digest_lane(*before) == digest_lane(*after)


def test_file_layout_belongs_to_the_target_and_not_to_a_checkpoint(config: Path) -> None:
    before, after = load_lane(config), load_lane(config, "into: items", "into: items, partition_by: [id]")
    assert digest_rules(*before) == digest_rules(*after) and digest_lane(*before) != digest_lane(*after)


ALL_RULES = """\
pipeline: shop
sources:
  shop: {format: debezium_json, transport: kafka, bootstrap_servers: "localhost:9092", topics: [cdc.public.items]}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./dead_letters}
tables:
  - match: public.items
    source: shop
    schema: {id: int64, name: string, price: "decimal(10,2)", at: "timestamp[us]", old: bool, part: int32}
    keys: [id]
    renamed_columns: {title: name}
    to:
      - sink: lake
        into: one
        policy: scd2
        track_history_column_list: [name, price]
        where: "price > 0 AND name IS NOT NULL AND NOT (part IN (1, 2))"
        apply_as_deletes: "old = true OR part = 3"
        except_column_list: [part]
      - sink: lake
        into: two
        ignore_null_updates_column_list: [name]
        apply_as_truncates: "part = 9"
        sequence_by: at
        schema_changes: {added: fail, dropped: ignore}
        columns:
          name: {mask: truncate, key: "0123456789abcdef", length: 2, rename: called}
          price: {cast: string}
          old: {drop: true}
          where_from: {metadata: topic}
          half: {expression: "CASE WHEN part > 1 THEN coalesce(part, 0) ELSE CAST(part AS bigint) END"}
          const: {constant: 7, cast: int64}
"""
STORED = {
    "one": "63a1835724ee107eb63dfee54bf00c872b4f14da1663de74b1f250de836e56b6",
    "two": "633622f9311830cee9d3e66a55172ed494e3554e7cc25b3010b647fe8fedf799",
}
"""Of 08ac5bf."""


def test_stored_digests_are_stable(config: Path) -> None:
    config.write_text(ALL_RULES)
    found = read_config(config, None, ())
    assert {lane.into: digest_rules(found, lane) for lane in found.settings.resolve_lanes("public.items")} == STORED
