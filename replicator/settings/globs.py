"""Globs over table and topic names: `*` any text, `?` one character, `[abc]`, `[a-z]`, `[!abc]`. Case counts."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

WILD = frozenset("*?[")


def is_glob(pattern: str) -> bool:
    """The pattern has a wildcard, so it is not an exact name."""
    return any(character in WILD for character in pattern)


def matches(pattern: str, name: str) -> bool:
    """The name is the pattern, or the glob matches all of it."""
    return fnmatchcase(name, pattern) if is_glob(pattern) else pattern == name


def malformed(pattern: str) -> str:
    """Why the text cannot be a name or glob; empty when it can."""
    if not pattern or pattern != pattern.strip():
        return "it is empty, or has spaces around it"
    if any(ord(character) < 32 for character in pattern):
        return "it holds control characters"
    if "[" in tokens(pattern):
        return "a [ has no ]"
    return ""


def literal_count(pattern: str) -> int:
    """How many characters the pattern fixes: the more, the more specific. `[...]`, `?` and `*` fix none."""
    return sum(len(token) == 1 and token not in WILD for token in tokens(pattern))


@cache
def tokens(pattern: str) -> tuple[str, ...]:
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


def overlap(one: str, other: str) -> bool:
    """Some name is matched by both patterns."""
    left, right = tokens(one), tokens(other)
    alphabet = _alphabet(left + right)

    @cache
    def from_here(i: int, j: int) -> bool:
        if i == len(left) and j == len(right):
            return True
        if i < len(left) and left[i] == "*":
            return from_here(i + 1, j) or (j < len(right) and from_here(i, j + 1))
        if j < len(right) and right[j] == "*":
            return from_here(i, j + 1) or (i < len(left) and from_here(i + 1, j))
        return i < len(left) and j < len(right) and _meet(left[i], right[j], alphabet) and from_here(i + 1, j + 1)

    return from_here(0, 0)


def _alphabet(parts: tuple[str, ...]) -> frozenset[str]:
    """Characters that tell the tokens apart: all that occur, their neighbours (ends of ranges), and a stranger."""
    written = {character for part in parts for character in part}
    return frozenset(chr(max(0, ord(c) + step)) for c in written for step in (-1, 0, 1)) | {"\N{SNOWMAN}"}


def _meet(one: str, other: str, alphabet: frozenset[str]) -> bool:
    return any(fnmatchcase(character, one) and fnmatchcase(character, other) for character in alphabet)
