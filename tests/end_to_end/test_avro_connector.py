"""A connector writes Avro with a real converter and registry: every target equals the source."""

from __future__ import annotations

import json

import pytest
from servers.schema_registry import open_proxy

from .compare import Row
from .shops import MIRRORS, await_caught_up, await_no_difference, list_mirror_differences, read_log_rows
from .stack import TABLES, World
from .workload import Load

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SEEDS, TRANSACTIONS = (21,), 80
CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"
FRAMING = {"auto-register": "true", "as-confluent": "true", "use-id": "contentId", "headers__enabled": "false"}


def make_converter_settings(registry: str) -> dict[str, str]:
    """Apicurio's converter, with Confluent's framing. Double underscores stand for dots."""
    own = {"url": f"{registry}/apis/registry/v2", **FRAMING}
    settings = {
        f"{of}__converter__apicurio__registry__{name}": text for of in ("key", "value") for name, text in own.items()
    }
    return settings | {"key__converter": CONVERTER, "value__converter": CONVERTER}


def test_avro_from_a_connector_into_every_target(world: World, registry: str) -> None:
    """The registry is unreachable while the program starts."""
    world.create_shop()
    world.register(**make_converter_settings(registry))
    with open_proxy(registry) as before:
        before.refuse_connections()
        world.overrides += ["sources.shop.format=debezium_avro", f'sources.shop.registry={{"url": "{before.url}"}}']
        daemon = world.daemon()
        daemon.await_condition(lambda: "does not answer" in daemon.log.read_text(errors="replace"), "the registry is away")
        assert not any(lane["counts"]["applied"] for lane in daemon.lanes().values())
        before.open()
        load = Load(world.source, SEEDS, TRANSACTIONS, rest=0)
        assert load.finish() > TRANSACTIONS // 2
        await_no_difference(lambda: list_mirror_differences(world), "every mirror equals the source", daemon, 300)
        await_caught_up(world, daemon)
    check_records(world)
    lanes = {lane["id"]: lane for lane in world.get_result("status")["lanes"]}
    assert all(lanes[f"{m}.{t}"]["counts"]["rejected"] == 0 for m in MIRRORS for t in TABLES)
    assert world.dead_letters() == []
    assert daemon.stop() == 0


def check_records(world: World) -> None:
    """The records have the right framing. Event logs store them unchanged, with their content as JSON."""
    records = world.topics.read([world.topic(table) for table in TABLES])
    assert records and all((r.value or b"\0")[:1] == (r.key or b"\0")[:1] == b"\0" for r in records)
    for log in ("raw", "raw_pg"):
        rows = list(read_log_rows(world, log))
        assert len(rows) == len(records)
        for row in (row for row in rows if row["value"] is not None):
            check_row(row)


def check_row(row: Row) -> None:
    assert (row["connector"], row["error"]) == ("postgresql", None)
    image = row["before"] if row["op"] == "d" else row["after"]
    assert (json.loads(image) if isinstance(image, str) else image)["id"] is not None
