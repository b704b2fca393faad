"""Pydantic's verdict on values, in our words: one problem per error, never with the value in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .findings import Path, PathProblem, describe_parent, describe_path, quote_name
from .schema import Settings

EXPECTED = {
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "is too long",
    "string_pattern_mismatch": "must be letters, digits, - and _, starting with a letter, 63 at most",
}


def validate(data: Any, root: FilePath, settled: set[Path]) -> tuple[Settings | None, list[PathProblem]]:
    """The settings, or all problems of values. Errors at paths in `settled`, or about values that were removed there, are
    left out. If there are no other errors, both results are empty, and only the caller's own problems count."""
    try:
        return Settings.model_validate(data, context={"root": root}), []
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        return None, [p for p in map(_make_problem, details) if not _is_reported(p, settled)]


def _is_reported(problem: PathProblem, settled: set[Path]) -> bool:
    """The path or one around it was judged already; or what is said to be missing inside it was removed."""
    path = problem.path
    removed = problem.code == "place" and any(known[: len(path)] == path for known in settled)
    return removed or any(path[: len(known)] == known for known in settled)


def _make_problem(error: ErrorDetails) -> PathProblem:
    path = tuple(_to_data_path(error["loc"]))
    kind = error["type"]
    if kind == "missing":
        return PathProblem(
            path, "missing", f"missing key {quote_name(path[-1])} {describe_parent(path[:-1])}", _describe_example(path)
        )
    if kind == "extra_forbidden":
        return PathProblem(path, "unknown_key", f"unknown key {quote_name(path[-1])} {describe_parent(path[:-1])}")
    if kind.startswith("replicator_"):
        return PathProblem(path, kind.removeprefix("replicator_"), f"{describe_path(path)} {error['msg']}")
    if kind == "string_pattern_mismatch":
        return PathProblem(path, "name", f"{describe_path(path)}: a name {EXPECTED[kind]}")
    if kind in ("greater_than_equal", "less_than_equal", "literal_error"):
        return PathProblem(path, "value", f"{describe_path(path)} {_describe_bound(kind, error.get('ctx', {}))}")
    return PathProblem(
        path, "type", f"{describe_path(path)} {EXPECTED.get(kind, 'does not have the right type')}", _describe_quotes(kind)
    )


def _describe_bound(kind: str, context: dict[str, Any]) -> str:
    if kind == "literal_error":
        return f"must be one of {context['expected']}"
    return f"must be at least {context['ge']}" if "ge" in context else f"must be at most {context['le']}"


def _describe_quotes(kind: str) -> str:
    return "put it in quotes" if kind == "string_type" else ""


def _describe_example(path: Path) -> str:
    """An example value for a key that a newcomer may not know."""
    examples = {
        "format": "for example format: debezium_json",
        "transport": "for example transport: kafka",
        "kind": "for example kind: delta",
    }
    return examples.get(str(path[-1]), "")


def _to_data_path(loc: tuple[int | str, ...]) -> Iterator[int | str]:
    """The path inside the document: pydantic adds the tag of a union (after a source's or sink's name, and in
    `dead_letters`), and `[key]`."""
    tag = {"sources": 2, "sinks": 2, "dead_letters": 1}.get(str(loc[0])) if loc else None
    for index, part in enumerate(loc):
        if index != tag and part != "[key]":
            yield part
