"""Mutated records through every decoder, many of them. Prints how far it is, and a table for docs/reference/measurements.md.

    python -m tests.fuzz_decoders [--inputs 1000000] [--minutes 600] [--seed 1] [--jobs 2] [--round 50000] [-k DECODER]

Decoders are those with a contract suite in `tests/pure/contract` or `tests/component/contract`:
its test `test_mutated_records_are_accounted_for` is run in
processes of its own, so many at a time, each with a seed of its own, until there are so many inputs of each decoder; that
which has the fewest comes next. A process that crashes, or hangs for five minutes, is a finding too; the records it tried
are in `*.trying`, pickled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path

from paths import PROJECT

ROOT = PROJECT
TEST = "test_mutated_records_are_accounted_for"


def main() -> int:
    options = parse_arguments()
    suites = list_suites(options.k)
    counts: dict[str, Counter[str]] = {decoder: Counter() for decoder in suites}
    asked = dict.fromkeys(suites, 0)
    """Inputs that were tried, or are being tried."""
    seeds, end = count(options.seed), time.monotonic() + 60 * options.minutes
    running: dict[Future[Counter[str]], str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        while True:
            decoder = min(asked, key=lambda name: asked[name])
            while len(running) < options.jobs and asked[decoder] < options.inputs and time.monotonic() < end:
                for suite, inputs in shares(suites[decoder], min(options.round, options.inputs - asked[decoder])):
                    running[pool.submit(try_inputs, suite, next(seeds), inputs)] = decoder
                    asked[decoder] += inputs
                decoder = min(asked, key=lambda name: asked[name])
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(done)
                counts[name].update(done.result())
                print(time.strftime("%H:%M:%S"), name, dict(counts[name]), flush=True)
    show(counts)
    return 1 if any(found["failed"] for found in counts.values()) else 0


def shares(suites: Sequence[str], inputs: int) -> list[tuple[str, int]]:
    """The inputs of a round, shared out among the suites of a decoder."""
    return [(suite, -(-inputs // len(suites))) for suite in suites]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each decoder")
    parser.add_argument("--minutes", type=float, default=600, help="no new process is started after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--round", type=int, default=50_000, help="inputs of a decoder that are tried at once")
    parser.add_argument("-k", default="", help="only decoders whose name has this in it")
    return parser.parse_args()


def list_suites(part: str) -> dict[str, list[str]]:
    """The suites of each decoder, by the name of what it decodes: that of the package its suite imports."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "tests/pure/contract",
        "tests/component/contract",
        "-k",
        TEST,
    ]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, list[str]] = {}
    for suite in (line for line in lines if "::" in line):
        found.setdefault(decoder_of(suite), []).append(suite)
    return {decoder: suites for decoder, suites in found.items() if part in decoder}


def decoder_of(suite: str) -> str:
    """By the parameter where a file has several decoders: `canal-declared` is `canal_json`."""
    names = re.findall(r"adapters\.decoders\.(\w+)", (ROOT / suite.partition("::")[0]).read_text())
    parameter = suite.partition("[")[2]
    return next((name for name in names if parameter and parameter.startswith(name.partition("_")[0])), names[0])


def try_inputs(suite: str, seed: int, inputs: int) -> Counter[str]:
    """What became of so many inputs of the suite with this seed."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    said = {"REPLICATOR_INPUTS": str(inputs), "REPLICATOR_SEED": str(seed), "REPLICATOR_PROGRESS": str(folder / "progress")}
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=0", "-p", "no:cacheprovider", "--tb=short", suite]
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | said, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    counts = Counter({"cpu seconds": round(usage.ru_utime + usage.ru_stime)})
    progress = folder / "progress"
    if progress.exists():
        counts.update({name: found for name, found in json.loads(progress.read_text()).items() if name != "done"})
    if process.returncode:
        counts["failed"] += 1
        print(f"FAILED {suite} seed {seed} inputs {inputs} exit {process.returncode}, {folder}", file=sys.stderr)
        told = [line[:1000] for line in (folder / "out").read_text().splitlines() if line.startswith("E ")]
        print("\n".join(told[-30:]), (folder / "err").read_text()[-3000:], file=sys.stderr, flush=True)
    return counts


def show(counts: dict[str, Counter[str]]) -> None:
    columns = ("inputs", "changed", "rejected", "refused", "ignored", "layouts learnt", "failed", "cpu seconds")
    print(f"| decoder | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for decoder, found in counts.items():
        print(f"| {decoder} | {' | '.join(f'{found[column]:,}' for column in columns)} |")


if __name__ == "__main__":
    sys.exit(main())
