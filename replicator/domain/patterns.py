"""Patterns of the configuration for tables, topics and columns: a name, a glob, or a regular expression that starts
with `^`.

Regular expressions for tables are RE2's (https://github.com/google/re2/wiki/Syntax): matching takes time in
proportion to the name, and there are no backreferences and no lookaround. An expression matches whole names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from functools import cache, lru_cache

import pyarrow as pa
import pyarrow.compute as pc

WILD = frozenset("*?[")
GROUP = re.compile(r"\{(\w*)\}")
MOST_GROUPS = 9


def is_regex(pattern: str) -> bool:
    """True for a regular expression."""
    return pattern.startswith("^")


def is_glob(pattern: str) -> bool:
    """True for a pattern with a wildcard."""
    return not is_regex(pattern) and any(character in WILD for character in pattern)


def is_exact(pattern: str) -> bool:
    """True for a plain name."""
    return not is_regex(pattern) and not is_glob(pattern)


def matches(pattern: str, name: str) -> bool:
    """True if the pattern is the name, or a glob or regular expression that matches all of it."""
    if is_regex(pattern):
        return _matches(pattern, name)
    return fnmatchcase(name, pattern) if is_glob(pattern) else pattern == name


def find_best(patterns: Iterable[str], name: str) -> str | None:
    """The pattern with the highest precedence for the name; None if none matches. Precedence:

    - the exact name
    - the first matching regular expression
    - the glob with the most literal characters
    """
    matching = [pattern for pattern in patterns if matches(pattern, name)]
    return next((p for p in matching if p == name), None) or max(
        matching, key=lambda p: (is_exact(p), is_regex(p), 0 if is_regex(p) else count_literals(p)), default=None
    )


def count_literals(pattern: str) -> int:
    """The number of literal characters of a glob: more are more specific. `[...]`, `?` and `*` are not literal."""
    return sum(len(token) == 1 and token not in WILD for token in split_tokens(pattern))


@cache
def split_tokens(pattern: str) -> tuple[str, ...]:
    """Single characters, `*`, `?`, and whole `[...]` classes; an unclosed `[` is a token of its own."""
    result = []
    at = 0
    while at < len(pattern):
        end = at + 1
        if pattern[at] == "[":
            close = pattern.find("]", at + (3 if pattern[at + 1 : at + 2] == "!" else 2))
            end = close + 1 if close >= 0 else end
        result.append(pattern[at:end])
        at = end
    return tuple(result)


def describe_regex_problem(pattern: str) -> str:
    """Why the text is not a valid regular expression; empty if it is."""
    try:
        compiled = re.compile(pattern)
        pc.match_substring_regex(pa.array([""]), pattern=_anchor(pattern))
    except (re.error, pa.ArrowInvalid, RecursionError, OverflowError):
        return "it is not a regular expression in RE2 syntax (no backreferences, no lookaround)"
    return f"it has more than {MOST_GROUPS} groups" if compiled.groups > MOST_GROUPS else ""


def describe_malformed(pattern: str) -> str:
    """Why the text cannot be a name, a glob or a regular expression; empty when it can."""
    if not pattern or pattern != pattern.strip():
        return "it is empty, or has spaces around it"
    if any(ord(character) < 32 for character in pattern):
        return "it holds control characters"
    if is_regex(pattern):
        return describe_regex_problem(pattern)
    if "[" in split_tokens(pattern):
        return "a [ has no ]"
    return ""


def has_overlap(one: str, other: str) -> bool:
    """Some name is matched by both globs."""
    left, right = split_tokens(one), split_tokens(other)
    # Characters that distinguish the tokens: all that occur, their neighbours (ends of ranges), and another one.
    written = {character for part in left + right for character in part}
    alphabet = {chr(max(0, ord(c) + step)) for c in written for step in (-1, 0, 1)} | {"\N{SNOWMAN}"}

    @cache
    def from_here(i: int, j: int) -> bool:
        if i == len(left) and j == len(right):
            return True
        if i < len(left) and left[i] == "*":
            return from_here(i + 1, j) or (j < len(right) and from_here(i, j + 1))
        if j < len(right) and right[j] == "*":
            return from_here(i, j + 1) or (i < len(left) and from_here(i + 1, j))
        if i == len(left) or j == len(right):
            return False
        are_alike = any(fnmatchcase(character, left[i]) and fnmatchcase(character, right[j]) for character in alphabet)
        return are_alike and from_here(i + 1, j + 1)

    return from_here(0, 0)


def list_groups(pattern: str) -> dict[str, int]:
    """The groups of a regular expression, by number and by name, with their numbers."""
    compiled = re.compile(pattern)
    return {**{str(number): number for number in range(1, compiled.groups + 1)}, **compiled.groupindex}


def find_unknown_groups(template: str, pattern: str) -> list[str]:
    """The names in braces in the template that are not groups of the regular expression, and `{` for a single brace."""
    groups = list_groups(pattern)
    alone = ["{"] if set(GROUP.sub("", template)) & set("{}") else []
    return [*(name for name in GROUP.findall(template) if name not in groups), *alone]


def expand_template(template: str, pattern: str, name: str) -> str:
    """The template with each `{1}` and `{group}` replaced by the text of that group in the name. The regular expression
    has to match the name. A group without a match is empty."""
    numbers = list_groups(pattern)

    def extract(match: re.Match[str]) -> str:
        number = numbers[match[1]]
        groups = pc.replace_substring_regex(pa.array([name]), pattern=_anchor(pattern), replacement=f"\\{number}")
        return str(groups[0].as_py())

    return GROUP.sub(extract, template)


def _anchor(pattern: str) -> str:
    return f"^(?:{pattern.removeprefix('^')})$"


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    try:
        return bool(pc.match_substring_regex(pa.array([name], pa.string()), pattern=_anchor(pattern))[0].as_py())
    except UnicodeEncodeError:
        return False  # No table of a database has such a name.


# Column lists of the configuration.


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Some columns by name: these, or all but these."""

    names: tuple[str, ...]
    excluded: bool = False

    def __contains__(self, name: str) -> bool:
        return (name in self.names) != self.excluded


# The topics that a source reads.

INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})

MAX_SHOWN = 5


class TopicFilter:
    """Names, globs, and regular expressions that start with `^`. The broker's internal topics match only by their full
    name.

    A connector's control topics (heartbeat, transaction, schema change) are like any other topic: they are read if they
    match.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = {p: re.compile(p if p.startswith("^") else translate(p)) for p in patterns}

    def __call__(self, topic: str) -> bool:
        """True if the source reads `topic`."""
        return topic in self._patterns or (topic not in INTERNAL and any(p.match(topic) for p in self._patterns.values()))

    def find_unmatched(self, topics: Iterable[str]) -> tuple[str, ...]:
        """The patterns that match none of `topics`."""
        names = [t for t in topics if self(t)]
        return tuple(text for text, p in self._patterns.items() if text not in names and not any(map(p.match, names)))

    def find_unmatched_with_similar(self, topics: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Per pattern that matches none of `topics` the similar topics, most similar first."""
        names = [t for t in topics if t not in INTERNAL]
        return {pattern: find_similar(pattern, names) for pattern in self.find_unmatched(names)}


def find_similar(pattern: str, names: Sequence[str]) -> Sequence[str]:
    """Names that are close to a pattern, or share a whole word with it, closest first."""
    bare = re.sub(r"[\^$*?\[\]\\()+]|\.\*", "", pattern)
    words = {word for word in bare.lower().split(".") if word}
    sharing = [name for name in names if words & set(name.lower().split("."))]
    sharing.sort(key=lambda name: -len(words & set(name.lower().split("."))))
    return list(dict.fromkeys([*sharing, *get_close_matches(bare, names, MAX_SHOWN)]))[:MAX_SHOWN]


def describe_unmatched(pattern: str, similar: Sequence[str]) -> str:
    """A sentence for a pattern without topics."""
    hint = f"; similar ones are {', '.join(similar)}" if similar else ""
    return f"No topic matches {pattern!r}{hint}."
