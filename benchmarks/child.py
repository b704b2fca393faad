"""One measured run of the daemon in a process of its own: `python -m benchmarks.child CONFIG OUT`.

The program runs as `replicator run --until-caught-up` runs it, without the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

# First, as in the program: it sets what Arrow's allocator reads when it is loaded.
from replicator import cli  # noqa: F401

# isort: split
from replicator.wiring.configuration import read_config

from .journal import Journal


def main(config: Path, out: Path) -> None:
    """Run until caught up, and write what was measured."""
    journal = Journal()
    journal.run(read_config(config, None, ()))
    out.write_text(json.dumps(journal.report() | {"peak_rss": _peak()}))


def _peak() -> int:
    """The highest resident memory of this process, in bytes. Unlike ru_maxrss it does not inherit the parent's."""
    lines: Iterable[str] = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
