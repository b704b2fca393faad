"""Digests of a lane's rules, to compare two configurations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

from replicator.settings import LaneSettings, Loaded, to_plain_options
from replicator.settings.tables import EntrySettings, TableSettings, find_private_columns

from . import adapters

RULES_VERSION = 2
"""Increased when the program produces other rows from the same records."""
RECORD_KEYS = adapters.DECODER_KEYS - {"registry"}
"""Keys of a source that decide the meaning of its records. The schema registry's address does not."""


def digest_rules(loaded: Loaded, lane: LaneSettings) -> str:
    """A digest of everything in the config that decides the rows of a lane. These are the options of its decoder and of
    the lane, and masks with their keys.

    The locations of source, registry and target do not count, nor the physical layout of the target.
    """
    settings = loaded.settings
    source, (table, entry) = settings.sources[lane.source], _get_settings(loaded, lane)
    told = source.for_decoder({key: value for key, value in to_plain_options(source).items() if key in RECORD_KEYS})
    limits = settings.limits
    said = {
        "program": RULES_VERSION,
        "records": [lane.source, source.format, dict(told)],
        "table": [lane.table, lane.declared, settings.get_on_reject(lane.table, lane.source)],
        "lane": [lane.policy, lane.keys, lane.watermark, lane.deletes, lane.tombstones],
        **({"out_of_range": lane.out_of_range} if lane.out_of_range else {}),
        "shape": [stored_text(lane.row_transforms), stored_text(lane.tracked), stored_text(lane.schema_rules)],
        "columns": [
            *(to_plain_options(said).get("columns") for said in (table, entry)),
            *_list_renamed_private(loaded, table),
        ],
        "limits": [limits.message_bytes, limits.depth, limits.columns],
    }
    return _hash_json(said)


STORED_NAMES: Mapping[str, str] = {
    "AddedColumn": "Added",
    "ColumnRule": "Changed",
    "ColumnRule.can_be_missing": "may_lack",
    "ColumnSelection": "Chosen",
    "ColumnTransforms": "Remade",
    "ColumnTransforms.additions": "added",
    "ColumnTransforms.rules": "changed",
    "RowTransforms": "Shape",
    "RowTransforms.column_transforms": "remade",
    "RowTransforms.has_column_versions": "by_column",
    "RowTransforms.ignore_null": "keeping",
    "RowTransforms.target_columns": "kept",
    "SchemaChangeKind": "Kind",
    "SchemaChangeMode": "Mode",
    "SentValue": "Sent",
}
"""Old names of classes and fields (`Class.field`), under which digests are stored."""


def stored_text(value: object) -> str:
    """A `repr` of the value that does not change when classes and fields are renamed, because its digests are stored."""
    if is_dataclass(value) and not isinstance(value, type):
        own = type(value).__qualname__
        parts = [
            f"{STORED_NAMES.get(f'{own}.{one.name}', one.name)}={stored_text(getattr(value, one.name))}"
            for one in fields(value)
            if one.repr
        ]
        return f"{STORED_NAMES.get(own, own)}({', '.join(parts)})"
    if isinstance(value, Enum):
        own = type(value).__name__
        return f"<{STORED_NAMES.get(own, own)}.{value.name}: {value.value!r}>"
    if isinstance(value, tuple):
        return f"({', '.join(map(stored_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{stored_text(key)}: {stored_text(one)}' for key, one in value.items())}}}"
    return repr(value)


def digest_lane(loaded: Loaded, lane: LaneSettings) -> str:
    """A digest of everything in the config that decides the lane's target: `digest_rules`, the physical layout, and
    stored metadata."""
    table, entry = _get_settings(loaded, lane)
    of_table = {name: value for name, value in to_plain_options(table).items() if name != "to"}
    said = {
        "rules": digest_rules(loaded, lane),
        "target": [of_table, to_plain_options(entry), to_plain_options(loaded.settings.defaults)],
        "lane": [lane.table, lane.sink, lane.into],
    }
    return _hash_json(said)


def _list_renamed_private(loaded: Loaded, table: TableSettings) -> list[str]:
    """Columns that are private because they are renames of private ones, whichever entry renames them."""
    return sorted(find_private_columns(table, loaded.settings.defaults).keys() - (table.columns or {}).keys())


def _get_settings(loaded: Loaded, lane: LaneSettings) -> tuple[TableSettings, EntrySettings]:
    """The lane's table and entry in the config."""
    table = loaded.settings.tables[cast(int, lane.at[1])]
    return table, table.to[cast(int, lane.at[3])]


def _hash_json(said: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
