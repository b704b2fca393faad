"""Checks globs over table and topic names, and finds globs that can match the same name. `*` is any text, `?` one
character, `[abc]`, `[a-z]`, `[!abc]` one of some characters. Case counts."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from replicator.domain.patterns import describe_regex_problem, is_regex, split_tokens


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
    alphabet = _list_characters(left + right)

    @cache
    def from_here(i: int, j: int) -> bool:
        if i == len(left) and j == len(right):
            return True
        if i < len(left) and left[i] == "*":
            return from_here(i + 1, j) or (j < len(right) and from_here(i, j + 1))
        if j < len(right) and right[j] == "*":
            return from_here(i, j + 1) or (i < len(left) and from_here(i + 1, j))
        return i < len(left) and j < len(right) and _has_common_name(left[i], right[j], alphabet) and from_here(i + 1, j + 1)

    return from_here(0, 0)


def _list_characters(parts: tuple[str, ...]) -> frozenset[str]:
    """Characters that distinguish the tokens: all that occur, their neighbours (ends of ranges), and another one."""
    written = {character for part in parts for character in part}
    return frozenset(chr(max(0, ord(c) + step)) for c in written for step in (-1, 0, 1)) | {"\N{SNOWMAN}"}


def _has_common_name(one: str, other: str, alphabet: frozenset[str]) -> bool:
    return any(fnmatchcase(character, one) and fnmatchcase(character, other) for character in alphabet)
