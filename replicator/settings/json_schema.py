"""The JSON Schema that editors use, generated from the models: `python -m replicator.settings.json_schema config`.

`${...}` is allowed wherever a value is not plain text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from .adapter_models import FORMATS
from .schema import Settings

Json = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE: Mapping[str, Any] = {"type": "string", "pattern": r"\$\{"}
PLUGIN = "Plugin"
"""The names of models of other packages' adapters, whose keys are not known, begin with it."""
FILES = {"schema.json": False, "environments/schema.json": True}
"""The generated files below the config folder, and whether each is for overlays."""


def build_config_schema(*, overlay: bool = False) -> Json:
    """The schema of a config file, or of an overlay: there nothing is required and null removes a key."""
    generated = Settings.model_json_schema(by_alias=True)
    parts = {
        name: _build_part(part, overlay) for name, part in generated.pop("$defs").items() if not name.startswith(PLUGIN)
    }
    return {
        "$schema": DIALECT,
        **_build_part(generated, overlay),
        "title": "An environment's overlay of a replicator config" if overlay else "A replicator config",
        "description": "Every key is checked; `replicator check` says what is wrong, and where.",
        "$defs": {**parts, "Reference": REFERENCE},
    }


def _build_part(part: Json, overlay: bool) -> Json:
    """One model's schema; in overlays without `required`, and with null to remove a key."""
    fields: Json = part.get("properties", {})
    if "transport" in fields:
        fields["format"]["enum"] = list(FORMATS)
    properties = {key: _to_written_schema(value) for key, value in fields.items()}
    for key, value in properties.items() if overlay else ():
        entries = value.get("patternProperties")
        if entries is not None:  # Sources and sinks can be removed by name.
            properties[key] = {**value, "patternProperties": {name: _allow_null(entry) for name, entry in entries.items()}}
        properties[key] = _allow_null(properties[key])
    rest = {key: value for key, value in part.items() if key not in ("properties", "required")}
    if part.get("required") and not overlay:
        rest["required"] = part["required"]
    return {**rest, "properties": properties}


def _allow_null(value: Json) -> Json:
    return {"anyOf": [value, {"type": "null"}]}


def _to_written_schema(value: Any) -> Any:
    """The schema of a value as written in the file: without null. Values other than plain text may
    be references to the environment."""
    if isinstance(value, list):
        return [_to_written_schema(item) for item in value if not _is_left_out(item)]
    if not isinstance(value, dict):
        return value
    plain = {
        name: _to_written_schema(item)
        for name, item in value.items()
        if name not in ("enum", "title", "writeOnly", "default")
    }
    if "oneOf" in plain:
        plain["anyOf"] = plain.pop("oneOf")
    if "patternProperties" in plain:
        plain["additionalProperties"] = False
    if "enum" in value:
        plain["enum"] = value["enum"]
    if value.get("default") is not None and not isinstance(value["default"], dict):
        plain["default"] = value["default"]
    if len(plain.get("anyOf", ())) == 1:  # A choice of one is no choice.
        plain = {**plain.pop("anyOf")[0], **plain}
    # Numbers, booleans, closed sets and patterns may also be `${...}`, which becomes one when it is replaced.
    if not {"enum", "pattern"} & plain.keys() and plain.get("type") not in ("integer", "number", "boolean"):
        return plain
    outside: Json = {name: plain.pop(name) for name in ("default", "description") if name in plain}
    return {**outside, "anyOf": [plain, {"$ref": "#/$defs/Reference"}]}


def _is_left_out(item: Any) -> bool:
    reference = str(item.get("$ref", "")) if isinstance(item, dict) else ""
    return item == {"type": "null"} or reference.rpartition("/")[2].startswith(PLUGIN)


def write_files(folder: FilePath) -> None:
    """Write the generated files below the config folder."""
    for name, overlay in FILES.items():
        (folder / name).write_text(render_file(overlay=overlay), encoding="utf-8")


def render_file(*, overlay: bool) -> str:
    """The file's text: sorted only where the models are not ordered, so that diffs stay small."""
    return json.dumps(build_config_schema(overlay=overlay), indent=2) + "\n"


if __name__ == "__main__":
    write_files(FilePath(sys.argv[1]))
