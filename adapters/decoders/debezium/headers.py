"""Debezium's headers: links between the two halves of a key change."""

from __future__ import annotations

import pyarrow as pa

from ..json.headers import find_entries

OLD_KEY = "__debezium.oldkey"
"""In the create half: the old key of the row."""
NEW_KEY = "__debezium.newkey"
"""In the delete half: the new key of the row."""
CONTEXT = "__debezium.context."
"""Prefix of headers that describe the connector."""


def read_key_headers(headers: pa.Array) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """JSON texts of old keys and of new keys, by index of the record."""
    found: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    for place, name, value in find_entries(headers, OLD_KEY, NEW_KEY):
        found[name == NEW_KEY][place] = value
    return found
