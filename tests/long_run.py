"""The long run: many random histories per engine and sink. Prints figures for docs/measurements.md.

    python -m tests.long_run [--examples 2000] [--seed 1] [-k EXPRESSION]

Each suite runs in a process of its own with `REPLICATOR_LONG`, `REPLICATOR_EXAMPLES` and `REPLICATOR_SEED` set; the same
seed tries the same histories. A failing history is printed as the call that makes it again.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ON_SPARK = 200
"""Spark takes seconds for what the local engine does in hundredths: its suites try one history in so many (`OnSpark`)."""
SUITES = {
    "local engine": (
        "tests/process/contract/test_engine_local.py",
        "test_fold_equals or composes or under_a_watermark_equals",
        1,
    ),
    "delta_rs sink": ("tests/component/contract/test_sink_delta_rs.py", "histories or parts_in_any_order_equal", 1),
    "postgres sink": ("tests/component/contract/test_sink_postgres.py", "histories or parts_in_any_order_equal", 1),
    "debezium_json decoder": ("tests/pure/contract", "decoded_changes or never_raises", 1),
    "Spark into Delta": (
        "tests/spark/contract/test_spark.py",
        "TestDeltaSparkSink and histories or TestSequencesPerColumn and not Postgres and parts_in_any_order_equal",
        ON_SPARK,
    ),
    "Spark into PostgreSQL": (
        "tests/spark/contract/test_spark.py",
        "TestPostgresSparkSink and histories or TestSequencesPerColumnInPostgres and parts_in_any_order_equal",
        ON_SPARK,
    ),
}
"""Name: files, which property tests of theirs, and of how many of `examples` each of them tries one."""


def main() -> int:
    options = parse_arguments()
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, seed {options.seed}")
    print("| suite | histories | seconds | outcome |\n| --- | --- | --- | --- |", flush=True)
    failed = 0
    for name, (files, expression, divisor) in SUITES.items():
        if options.k in name:
            failed += run(name, files, expression, max(1, options.examples // divisor), options)
    return 1 if failed else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-k", default="", help="only suites whose name has this in it")
    return parser.parse_args()


def run(name: str, files: str, expression: str, tried: int, options: argparse.Namespace) -> bool:
    said = {"REPLICATOR_EXAMPLES": str(options.examples), "REPLICATOR_SEED": str(options.seed), "REPLICATOR_LONG": "1"}
    environment = os.environ | said
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=0", "-p", "no:cacheprovider", files, "-k", expression]
    listed = subprocess.run([*command, "--collect-only"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    properties = sum("::" in line for line in listed.splitlines())
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    outcome = "equal to the model" if done.returncode == 0 else "FAILED"
    print(f"| {name} | {properties} x {tried} | {time.monotonic() - began:.0f} | {outcome} |", flush=True)
    if done.returncode:
        print(done.stdout[-8000:], file=sys.stderr)
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
