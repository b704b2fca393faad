"""A config to start with, for `replicator init`: all tables of the sources into all targets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from replicator.domain.plain_values import to_printable
from replicator.ports.discovery import DiscoveredSource, DiscoveredTable

COMMENT_COLUMN = 40
MOST_NAMED = 8
"""Tables that the comment of a glob names."""
BY_POLICY = {"scd1": "current rows", "append": "no key: each change is a row"}
DATABASE_COMMENT = "only `replicator doctor` and `backfill` connect to it"
CONNECT_COMMENT = "only `replicator doctor` connects to it"

Sinks = Mapping[str, Mapping[str, Any]]


def choose_policy(table: DiscoveredTable) -> str:
    """The current rows where there is a key, otherwise every change."""
    return "scd1" if table.keys else "append"


def build_starting_config(sources: Sequence[DiscoveredSource], sinks: Sinks) -> str:
    """The YAML text of a config. `sinks`: as in the config."""
    config = _to_yaml(
        {
            "sources": {source.name: dict(source.settings) for source in sources},
            "sinks": dict(sinks),
            "tables": [entry for source in sources for entry, _ in list_entries(source, tuple(sinks))],
        }
    )
    titles = "\n".join(f"Made by `replicator init` from {_to_line(source.title)}." for source in sources)
    help_line = "`replicator check` validates this file, `replicator plan` shows what will run."
    config.yaml_set_start_comment(f"yaml-language-server: $schema=./schema.json\n{titles}\n{help_line}")
    for key in ("sinks", "tables"):
        config.yaml_set_comment_before_after_key(key, before="\n")
    config.yaml_add_eol_comment("the most specific match wins, whole", "tables", column=COMMENT_COLUMN)
    for source in config["sources"].values():
        for key, comment in (("database", DATABASE_COMMENT), ("connect", CONNECT_COMMENT)):
            if key in source:
                source.yaml_add_eol_comment(comment, key, column=COMMENT_COLUMN)
    comments = (comment for source in sources for _, comment in list_entries(source, tuple(sinks)))
    for entry, comment in zip(config["tables"], comments, strict=True):
        entry.yaml_add_eol_comment(comment, "match", column=COMMENT_COLUMN)
    yaml, out = YAML(), StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4096
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.dump(config, out)
    return re.sub(r"^# *\n(?=sinks|tables)", "\n", out.getvalue(), flags=re.MULTILINE)


def list_entries(source: DiscoveredSource, sinks: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The entries of `tables` for a source, each with a comment: one for the tables of a schema that are alike, then one for
    each other table. Tables of one name in several schemas have the schema in the target's name."""
    bare = [_split(table.name)[1] for table in source.tables]
    into = {t.name: re.sub(r"\W", "_", t.name) for t, name in zip(source.tables, bare, strict=True) if bare.count(name) > 1}
    to = [{"sink": sink} for sink in sinks]
    for schema in dict.fromkeys(_split(table.name)[0] for table in source.tables):
        mine = [table for table in source.tables if _split(table.name)[0] == schema]
        keyed = [table for table in mine if table.keys] or mine
        alike = [t for t in keyed if schema and not t.settings and t.name not in into]
        if alike:
            policy = choose_policy(alike[0])
            named = ", ".join(_to_line(_split(table.name)[1]) for table in alike[:MOST_NAMED])
            more = f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
            comment = f"{BY_POLICY[policy]}: {named}{more}"
            yield {"match": f"{_to_match(schema)}.*", "source": source.name, "policy": policy, "to": to}, comment
        for table in (table for table in mine if table not in alike):
            policy, name = choose_policy(table), into.get(table.name)
            own = {**({"into": name} if name else {}), **table.settings}
            yield (
                {"match": _to_match(table.name), "source": source.name, "policy": policy, **own, "to": to},
                BY_POLICY[policy],
            )


def _split(table: str) -> tuple[str, str]:
    """Schema and name; the schema is empty if there is none."""
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else ("", table)


def _to_match(name: str) -> str:
    """The name, or a glob where `match` cannot hold its characters."""
    printable = "".join(character if character.isprintable() else "?" for character in name)
    return printable.replace("[", "[[]").replace("${", "$${")


def _to_line(text: str) -> str:
    return to_printable(text).replace("\n", " ")


def _to_yaml(value: Any) -> Any:
    """The value for the YAML writer: a list of small values is one line."""
    if isinstance(value, Mapping):
        return CommentedMap((key, _to_yaml(item)) for key, item in value.items())
    if not isinstance(value, list):
        return value
    items = CommentedSeq([_to_yaml(item) for item in value])
    if all(isinstance(item, str) or (isinstance(item, Mapping) and len(item) == 1) for item in value):
        for item in (items, *(item for item in items if isinstance(item, CommentedMap))):
            item.fa.set_flow_style()
    return items
