"""Which tables a name in the configuration means: a name, a glob, or a regular expression that starts with `^`.

Regular expressions are RE2's (https://github.com/google/re2/wiki/Syntax), which takes time in proportion to the name,
whatever the expression, and has no backreferences and no looking around. One matches whole names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache, lru_cache

import pyarrow as pa
import pyarrow.compute as pc

WILD = frozenset("*?[")
GROUP = re.compile(r"\{(\w*)\}")
MOST_GROUPS = 9


def is_regex(pattern: str) -> bool:
    """The pattern is a regular expression."""
    return pattern.startswith("^")


def is_glob(pattern: str) -> bool:
    """The pattern has a wildcard, so it is not an exact name."""
    return not is_regex(pattern) and any(character in WILD for character in pattern)


def is_exact(pattern: str) -> bool:
    """The pattern is a name."""
    return not is_regex(pattern) and not is_glob(pattern)


def matches(pattern: str, name: str) -> bool:
    """The name is the pattern, or the glob or regular expression matches all of it."""
    if is_regex(pattern):
        return _matches(pattern, name)
    return fnmatchcase(name, pattern) if is_glob(pattern) else pattern == name


def find_best(patterns: Iterable[str], name: str) -> str | None:
    """The pattern that decides about the name; None when none matches. The name itself, else the first regular expression,
    else the glob that fixes most characters."""
    found = [pattern for pattern in patterns if matches(pattern, name)]
    return next((p for p in found if p == name), None) or max(
        found, key=lambda p: (is_exact(p), is_regex(p), 0 if is_regex(p) else count_literals(p)), default=None
    )


def count_literals(pattern: str) -> int:
    """How many characters a glob fixes: the more, the more specific. `[...]`, `?` and `*` fix none."""
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
    """Why the text is no regular expression; empty when it is one."""
    try:
        compiled = re.compile(pattern)
        pc.match_substring_regex(pa.array([""]), pattern=_anchor(pattern))
    except (re.error, pa.ArrowInvalid, RecursionError, OverflowError):
        return "it is no regular expression as RE2 has them (without backreferences and looking around)"
    return f"it has more than {MOST_GROUPS} groups" if compiled.groups > MOST_GROUPS else ""


def list_groups(pattern: str) -> dict[str, int]:
    """The groups of a regular expression, by number and by name, with their numbers."""
    compiled = re.compile(pattern)
    return {**{str(number): number for number in range(1, compiled.groups + 1)}, **compiled.groupindex}


def find_unknown_groups(template: str, pattern: str) -> list[str]:
    """What stands in braces in the template and is no group of the regular expression; a brace alone stands for itself."""
    known = list_groups(pattern)
    alone = ["{"] if set(GROUP.sub("", template)) & set("{}") else []
    return [*(name for name in GROUP.findall(template) if name not in known), *alone]


def expand_template(template: str, pattern: str, name: str) -> str:
    """The template with what the groups of the regular expression hold of the name, which it matches, in place of `{1}` and
    `{group}`; a group that holds nothing is empty."""
    known = list_groups(pattern)
    return GROUP.sub(lambda found: _extract_group(pattern, name, known[found[1]]), template)


def _anchor(pattern: str) -> str:
    return f"^(?:{pattern.removeprefix('^')})$"


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    try:
        return bool(pc.match_substring_regex(pa.array([name], pa.string()), pattern=_anchor(pattern))[0].as_py())
    except UnicodeEncodeError:
        return False  # No table of a database is called so.


def _extract_group(pattern: str, name: str, group: int) -> str:
    held = pc.replace_substring_regex(pa.array([name]), pattern=_anchor(pattern), replacement=f"\\{group}")
    return str(held[0].as_py())
