"""Headers that mean something: the two halves of a key change know each other by them."""

from __future__ import annotations

import pyarrow as pa

from ..json.headers import find_entries

OLD_KEY = "__debezium.oldkey"
"""On the create half: the key that the row had before."""
NEW_KEY = "__debezium.newkey"
"""On the delete half: the key that the row has now."""
CONTEXT = "__debezium.context."
"""What the names of headers begin with that tell of the connector."""


def read_key_headers(headers: pa.Array) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Old keys and new keys by the record's place, as their JSON text."""
    found: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    for place, name, value in find_entries(headers, OLD_KEY, NEW_KEY):
        found[name == NEW_KEY][place] = value
    return found
