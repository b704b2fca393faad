"""Rules for an event's ids and maps, and JSON values as the texts of a map.

Maps are from text to text, so that every store returns the same. Text stays as it is, null stays null, and any other
JSON value becomes its JSON text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import Fatal

Texts = Mapping[str, str | None]

MAX_ID_BYTES = 500
"""PostgreSQL's indexes accept about five times as many."""
LONGEST_FOLDER = 255 - len("aggregate_type=")
RESERVED = "__HIVE_DEFAULT_PARTITION__"
DEEPEST = 500
NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.-]")
STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
NULL = b"null"
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class InvalidEvent(Fatal):
    """The event cannot be stored. The sentence names the fault, never a value."""


def check_id(name: str, value: object) -> str:
    """The text of an id; InvalidEvent if it cannot be one."""
    text = _check_text(name, value)
    if not text.strip():
        raise InvalidEvent(f"{name} is empty")
    if len(text.encode()) > MAX_ID_BYTES:
        raise InvalidEvent(f"{name} is longer than {MAX_ID_BYTES} bytes")
    return text


def check_type(value: object) -> str:
    """The text of an aggregate type. It also names a partition folder: there, letters, digits and `_.-` need one byte,
    and all other characters three times their bytes."""
    text = check_id("aggregate_type", value)
    plain = NOT_PLAIN.sub("", text)
    if len(plain) + 3 * (len(text.encode()) - len(plain)) > LONGEST_FOLDER or text == RESERVED:
        raise InvalidEvent("aggregate_type is reserved, or too long for the name of a partition")
    return text


def check_texts(name: str, value: object) -> None:
    """Raise InvalidEvent unless `value` is a map from text to text or null."""
    if not isinstance(value, Mapping):
        raise InvalidEvent(f"{name} is not a map")
    for key, text in value.items():
        _check_text(f"a name in {name}", key)
        if text is not None:
            _check_text(f"a value in {name}", text)


def to_texts(name: str, value: object) -> dict[str, str | None]:
    """A mapping of Python values as a map of texts; JSON text for values that are not text. InvalidEvent for anything
    else."""
    if not isinstance(value, Mapping):
        raise InvalidEvent(f"{name} is not a mapping of names to values")
    for key in value:
        _check_text(f"a name in {name}", key)
    return {key: one if isinstance(one, str) or one is None else _encode_json(name, one) for key, one in value.items()}


def json_to_texts(name: str, value: Mapping[str, msgspec.Raw]) -> dict[str, str | None]:
    """A JSON object as a map of texts: numbers keep every digit that was sent."""
    return {key: _decode_text(name, bytes(raw)) for key, raw in value.items()}


def read_json(name: str, text: str) -> dict[str, str | None]:
    """The text of a JSON object as a map of texts; InvalidEvent if it is not a JSON object."""
    try:
        return json_to_texts(name, msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise InvalidEvent(f"{name} is not a JSON object") from None


def measure_depth(text: str) -> int:
    """The depth of nested brackets in JSON text; for other text at least that depth."""
    if text[:1] not in "[{":
        return 0
    depth = deepest = 0
    for found in STRUCTURE.finditer(text):
        if found[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in "]}":
            depth -= 1
    return deepest


def _decode_text(name: str, raw: bytes) -> str | None:
    try:
        if raw == NULL:
            return None
        if raw.startswith(b'"'):
            return msgspec.json.decode(raw, type=str)
        if ESCAPED_NUL.search(raw):
            raise InvalidEvent(f"a value in {name} contains a NUL character, which PostgreSQL cannot store")
        return msgspec.json.format(raw, indent=-1).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise InvalidEvent(f"a value in {name} is not JSON") from None


def _encode_json(name: str, value: object) -> str:
    _refuse_other(name, value, 1)
    return msgspec.json.encode(value).decode()


def _refuse_other(name: str, value: Any, depth: int) -> None:
    """Raise InvalidEvent for values that JSON cannot represent exactly."""
    if depth > DEEPEST:
        raise InvalidEvent(f"a value in {name} is nested deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        for key, one in value.items():
            _check_text(f"a name in {name}", key)
            _refuse_other(name, one, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            _refuse_other(name, one, depth + 1)
    elif isinstance(value, str):
        _check_text(f"a value in {name}", value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidEvent(f"a value in {name} is NaN or infinite, which JSON cannot represent")
    elif value is not None and not isinstance(value, bool | int | float):
        raise InvalidEvent(f"a value in {name} has type {type(value).__name__}, which JSON does not have: pass it as text")


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidEvent(f"{name} is {'NULL' if value is None else 'not text'}")
    if "\0" in value:
        raise InvalidEvent(f"{name} contains a NUL character, which PostgreSQL cannot store")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidEvent(f"{name} is not Unicode text") from None
    return value
