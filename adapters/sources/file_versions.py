"""Versions in file names: the digits at their end."""

from __future__ import annotations

import re
from collections.abc import Iterable

DIGITS = re.compile(r"(\d(?:[\d_:T.-]*\d)?)Z?\Z")


def find_version_digits(name: str, suffixes: Iterable[str]) -> list[str]:
    """The digit groups before the longest of `suffixes` in `name`; empty if there are none."""
    suffix = next((one for one in sorted(suffixes, key=len, reverse=True) if name.endswith(one)), "")
    match = DIGITS.search(name.removesuffix(suffix))
    return re.findall(r"\d+", match[1]) if match else []
