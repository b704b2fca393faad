"""CPU time by thread, the program's own and those of the libraries."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu() -> dict[str, float]:
    """CPU seconds so far of the threads that live, summed by name; numbers in names are left out."""
    own = {t.native_id: t.name for t in threading.enumerate()}
    out: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            comm, used = _stat((task / "stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        name = re.sub(r"[-_]?\d+", "", own.get(int(task.name), f"native {comm}"))
        out[name] = out.get(name, 0.0) + used
    return out


def _stat(text: str) -> tuple[str, float]:
    comm, rest = text[text.index("(") + 1 :].rsplit(")", 1)
    fields = rest.split()
    return comm, (int(fields[11]) + int(fields[12])) / TICKS
