"""Append targets in addition to the targets of the shipped config."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from .shops import read_mirror_table
from .stack import World, fetch_rows

APPEND = json.dumps(
    [
        {
            "match": "public.*",
            "source": "shop",
            "to": [{"sink": s} for s in ("raw", "raw_pg", "lake", "datalake", "target")],
        },
        *(
            {
                "match": f"public.{table}",
                "source": "shop",
                "to": [
                    *({"sink": sink} for sink in ("raw", "raw_pg", "lake", "datalake", "target")),
                    *({"sink": sink, "into": f"{table}_changes", "policy": "append"} for sink in ("lake", "target")),
                ],
            }
            for table in ("customers", "products")
        ),
        {
            "match": "public.visits",
            "source": "shop",
            "to": [{"sink": "raw"}, {"sink": "raw_pg"}, *({"sink": s, "policy": "append"} for s in ("lake", "target"))],
        },
    ]
)
"""`tables` of a config: the shipped ones, and in two sinks the changes of two tables and of a table without a key."""
VISITS = """
    CREATE TABLE visits (note text);
    CREATE FUNCTION visit() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO visits SELECT gen_random_uuid() FROM generate_series(1, 2); RETURN NULL; END $$;
    CREATE TRIGGER visited AFTER INSERT OR UPDATE ON products FOR EACH ROW EXECUTE FUNCTION visit();
"""
"""A table without a key. Every change of a product inserts two rows in its transaction."""
APPENDED = tuple((sink, table) for sink in ("lake", "target") for table in ("customers", "products"))
Change = tuple[str, int, int]
"""Operation, key and log position. They stay the same when a change is sent again. Its number in the transaction may not: a
worker that restarts within a transaction may count from the beginning."""


def to_change(payload: Mapping[str, Any]) -> Change:
    row = payload["after"] or payload["before"]
    return (payload["op"], row["id"], payload["source"]["lsn"])


def count_topic_changes(world: World, table: str) -> Counter[Change]:
    """The changes of a table in its topic, with the number of times each was sent."""
    records = world.topics.read([world.topic(table)])
    return Counter(to_change(r.payload) for r in records if r.payload)


def count_target_changes(world: World, sink: str, table: str) -> Counter[Change]:
    rows = read_mirror_table(world, sink, f"{table}_changes")
    return Counter((r["_cdc_op"], r["id"], r["_cdc_seq_2"]) for r in rows)


def list_append_differences(world: World) -> list[str]:
    """Changes that an append target lacks, has twice, or has in excess. Each change counts once, even if the connector
    sent it again."""
    lines = []
    for sink, table in APPENDED:
        expected, found = Counter(set(count_topic_changes(world, table))), count_target_changes(world, sink, table)
        lines += [f"{sink}, {table}: lacks {change}" for change in (expected - found)]
        lines += [f"{sink}, {table}: has too often {change}" for change in (found - expected)]
    return lines[:8]


def list_visit_differences(world: World) -> list[str]:
    """Rows of the table without a key that a target lacks or has twice."""
    expected, lines = Counter(note for (note,) in fetch_rows(world.source, "SELECT note FROM visits")), []
    for sink in ("lake", "target"):
        found = Counter(row["note"] for row in read_mirror_table(world, sink, "visits"))
        lines += [f"{sink}, visits: lacks {note}" for note in expected - found]
        lines += [f"{sink}, visits: has too often {note}" for note in found - expected]
    return lines[:8]
