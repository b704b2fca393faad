"""The Spark engine into Delta, beside a pipeline as tutorials write it, over the same topic with the same batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from adapters.stack import EmbeddedStack
from adapters.stack.spark import spark_cluster

from .configs import LAKE, write_config
from .lanes import python
from .servers import PROJECT, RESULTS, servers, workspace
from .topic import TOPIC, Filled, fill


def measure(events: int, batches: Sequence[int], workers: Sequence[int] = (), *, alone: bool = False) -> dict[str, Any]:
    """The figures of one run: for each batch size both pipelines, or ours `alone`, each in a process of its own, cold; then
    ours on clusters of so many `workers` with the largest batch."""
    figures: dict[str, Any] = {"events": events, "runs": []}
    with servers(connect=False) as stack:
        filled = fill(stack.bootstrap_servers, events)
        for batch in batches:
            for name, run in PIPELINES.items() if not alone else ((OURS, _ours),):
                print(f"measuring {name} with batches of {batch:,}", flush=True)
                found = run(stack, filled, batch)
                figures["runs"].append({"what": name, "batch": batch, **found, "rate": events / found["seconds"]})
        print("measuring replicator again, as a control", flush=True)
        found = _ours(stack, filled, batches[0])
        figures["runs"].append({"what": CONTROL, "batch": batches[0], **found, "rate": events / found["seconds"]})
        for count in workers:
            name, batch = f"replicator, {count} worker{'s' if count > 1 else ''}", max(batches)
            print(f"measuring {name} with batches of {batch:,}", flush=True)
            with spark_cluster(PROJECT, RESULTS / f"cluster-{count}", count) as master:
                found = _ours(stack, filled, batch, {"spark.master": master, "spark.executor.memory": "1g"})
            figures["runs"].append({"what": name, "batch": batch, **found, "rate": events / found["seconds"]})
    return figures


def show(figures: Mapping[str, Any]) -> None:
    """Print what `measure` found."""
    table = Table(title=f"{figures['events']:,} events, one partition, into one Delta table, on Spark")
    for name in ("what", "batch", "events/s", "of plain, same batch", "of plain's best", "beside MERGE", "s per batch"):
        table.add_column(name, justify="left" if name == "what" else "right")
    plain = {r["batch"]: r["rate"] for r in figures["runs"] if r["what"] == PLAIN}
    best = max(plain.values(), default=None)
    for run in figures["runs"]:
        each = ", ".join(f"{s:.1f}" for s in run["batches"][:8])
        ratios = [f"{run['rate'] / rate:.2f}" if rate else "" for rate in (plain.get(run["batch"]), best)]
        beside = f"{run['beside_merge']:.1f} s" if "beside_merge" in run else ""
        table.add_row(run["what"], f"{run['batch']:,}", f"{run['rate']:,.0f}", *ratios, beside, each)
    Console(width=150).print(table)


def _plain(stack: EmbeddedStack, filled: Filled, batch: int, session: str = "tutorial") -> dict[str, Any]:
    folder = workspace(f"plain-{session}-{batch}")
    lake, out = folder / "lake", folder / "figures.json"
    arguments = (stack.bootstrap_servers, TOPIC, str(batch), str(lake), session)
    found = python("benchmarks.plain_spark", *arguments, out=out)
    _check(str(lake), filled)
    return found


def _ours(stack: EmbeddedStack, filled: Filled, batch: int, spark: Mapping[str, str] | None = None) -> dict[str, Any]:
    folder = workspace(f"spark-{batch}")
    config = write_config(folder, (LAKE,), stack.bootstrap_servers, "", engine="spark", batch=batch, spark=spark)
    found = python("benchmarks.spark_child", str(config), str(folder / "lake" / "rows"), out=folder / "figures.json")
    target = str(folder / "lake" / "rows")
    _check(target, filled)
    return {
        **found,
        **({"beside_merge": measure_time_outside_merge(found["batches"], found["merges"])} if found["merges"] else {}),
    }


def measure_time_outside_merge(batches: Sequence[float], merges: Sequence[float]) -> float:
    """Median seconds from commit to commit that are not the MERGE statement's own; of the later half of the merges, when
    Java is warm. While one batch is merged, the next is read and decoded. The commit that makes a table is no MERGE."""
    later = -(-len(merges) // 2)
    return median(between - merge for between, merge in zip(batches[-later:], merges[-later:], strict=True))


PLAIN, OURS, CONTROL = "plain PySpark", "replicator", "replicator, again: A/A control"
PIPELINES = {
    PLAIN: _plain,
    f"{PLAIN}, our session": partial(_plain, session="ours"),
    OURS: _ours,
}


def _check(path: str, filled: Filled) -> None:
    """A rate counts only if the rows are right."""
    versions = DeltaTable(path).to_pyarrow_table(columns=["version"])["version"].to_pylist()
    if (len(versions), sum(versions)) != (filled.rows, filled.checksum):
        raise RuntimeError(f"{path} holds {len(versions)} rows, {filled.rows} are right, or their versions are wrong.")
