"""Planted faults: small wrong changes of the product, each of which named tests must notice. Prints a table.

    python -m tests.planted_faults [NAME ...]

NAME is a part of a fault's name; without names all of `planted_faults.toml` are planted. The changes are made in a
temporary copy of the project. A fault is caught if each of its tests fails by an assertion, having passed without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
DEFAULT_RUN = {"REPLICATOR_EXAMPLES": "2", "REPLICATOR_KILLS": "2"}
"""As `scripts/test.sh` sets them."""
ASSERTION = re.compile(r" - (assert |AssertionError|Failed: (?!Timeout))")
"""In pytest's summary: the test itself found something. Other errors may come from anything."""


@dataclass(frozen=True, slots=True)
class Fault:
    """See the head of `planted_faults.toml`."""

    name: str
    loses: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_faults() -> list[Fault]:
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in tomllib.loads(LIST.read_text())["fault"]]


def main(names: Sequence[str]) -> int:
    faults = [fault for fault in read_faults() if not names or any(name in fault.name for name in names)]
    if not faults:
        print(__doc__, "No fault has such a name.", sep="\n", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="planted-faults-") as folder:
        copy = copy_project(Path(folder).resolve())
        began = time.monotonic()
        sound = run_tests(copy, sorted({test for fault in faults for test in fault.tests}))
        if sound.returncode:
            print(sound.stdout[-8000:], sound.stderr[-2000:], "The tests do not pass without a fault.", sep="\n")
            return 1
        print(f"Without a fault all tests pass ({time.monotonic() - began:.0f} s).\n")
        print("| fault | caught by | seconds |\n| --- | --- | --- |", flush=True)
        survivors = [fault.name for fault in faults if not is_caught(copy, fault)]
    print(f"\n{len(faults) - len(survivors)} of {len(faults)} faults caught, {time.monotonic() - began:.0f} s.")
    return 1 if survivors else 0


def copy_project(folder: Path) -> Path:
    """A copy of the files that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_tests(copy: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "REPLICATOR_LONG"}
    environment |= {**DEFAULT_RUN, "PYTHONPATH": str(copy), "COLUMNS": "400"}
    command = [sys.executable, "-m", "pytest", *tests, "-q", "-rfE", "--tb=short", "--timeout=300", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def is_caught(copy: Path, fault: Fault) -> bool:
    """Prints the fault's row of the table."""
    began = time.monotonic()
    with plant(copy, fault):
        done = run_tests(copy, fault.tests)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ") and ASSERTION.search(line)]
    passed = [test for test in fault.tests if not any(line.startswith(f"FAILED {test}") for line in failed)]
    by = f"NOT by {', '.join(passed)}" if passed else ", ".join(fault.tests)
    print(f"| {fault.name} | {by} | {time.monotonic() - began:.0f} |", flush=True)
    if passed:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return not passed


@contextmanager
def plant(copy: Path, fault: Fault) -> Iterator[None]:
    path = copy / fault.file
    text, times = path.read_text(), path.stat()
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: its old text stands {text.count(fault.old)} times in {fault.file}, not once")
    path.write_text(text.replace(fault.old, fault.new))
    yield
    path.write_text(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
