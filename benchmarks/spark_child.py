"""One measured run of the daemon on Spark in a process of its own: `python -m benchmarks.spark_child CONFIG OUT`."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from adapters.sources.kafka.spark.source import KafkaSparkSource
from adapters.spark import write
from replicator.application.lanes import Lanes
from replicator.wiring.configuration import read
from replicator.wiring.container import Container


def run(config: Path) -> dict[str, Any]:
    """Until caught up; seconds from the start of the query to the last commit, those between commits, and of each how many
    the MERGE statement took, from its call to its return."""
    moments: list[float] = []
    merges: list[float] = []
    stream, settled, merged = KafkaSparkSource.run, Lanes.settled, write._merged

    def begun(source: Any, *arguments: Any, **options: Any) -> None:
        moments.append(time.monotonic())
        stream(source, *arguments, **options)

    def noted(lanes: Any, run: Any, position: Any, counts: Any, newest: Any) -> None:
        settled(lanes, run, position, counts, newest)
        if counts.total:
            moments.append(time.monotonic())

    def timed(*arguments: Any) -> None:
        start = time.monotonic()
        merged(*arguments)
        merges.append(time.monotonic() - start)

    KafkaSparkSource.run, Lanes.settled, write._merged = begun, noted, timed  # type: ignore[method-assign]
    supervisor = Container(loaded=read(config, None, ())).supervisor()
    code = supervisor.run(once=True)
    if int(code):
        raise SystemExit(f"The run ended with code {int(code)}: {supervisor.problem}")
    took = [later - before for before, later in pairwise(moments)]
    return {"seconds": moments[-1] - moments[0], "batches": took, "merges": merges}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(Path(sys.argv[1]))))
