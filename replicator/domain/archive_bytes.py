"""JSON form of record bytes in the archive transport."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any


def encode_bytes(data: bytes | None) -> Any:
    """Text if the bytes are UTF-8, so that people can read it; otherwise `{"base64": ...}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def decode_bytes(value: Any) -> bytes | None:
    """The bytes that `encode_bytes` encoded."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])
