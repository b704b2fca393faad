"""Memory over a long run: resident memory of the daemon, every second, while it takes in millions of events."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from .configs import write_config
from .lanes import LANES
from .servers import PROJECT, servers, workspace
from .topic import fill

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 100
EVERY = 1.0


def measure(events: int, lane: str) -> dict[str, Any]:
    """One lane of `lanes.LANES` over `events` events: samples of RSS in bytes, the highest one, and the slope in bytes per
    second over the second half, where a program that settles is flat."""
    with servers(connect=False) as stack:
        fill(stack.bootstrap_servers, events)
        folder = workspace("memory")
        dsn = stack.create_database("target", "bench_memory")
        config = write_config(folder, LANES[lane], stack.bootstrap_servers, dsn)
        began = time.monotonic()
        samples = _watch_memory(config, folder)
        seconds = time.monotonic() - began
    half = samples[len(samples) // 2 :]
    return {
        "events": events,
        "lane": lane,
        "seconds": seconds,
        "rss": samples,
        "max": max(samples),
        "slope": slope(half) / EVERY,
    }


def show(figures: dict[str, Any]) -> None:
    """Print what `measure` found."""
    samples = figures["rss"]
    grown = figures["slope"] * figures["seconds"] / 2
    print(f"{figures['events']:,} events in {figures['seconds']:,.0f} s, lane {figures['lane']}")
    print(
        f"RSS at most {figures['max'] / 1e6:,.0f} MB; second half {figures['slope'] / 1e6:+.3f} MB/s, {grown / 1e6:+,.0f} MB"
    )
    print(f"0 to {max(samples) / 1e6:,.0f} MB: {sparkline(samples)}")


def sparkline(samples: list[int]) -> str:
    """The samples as at most `WIDTH` bars from 0 to the highest; each bar is the highest of its samples."""
    step = max(1, -(-len(samples) // WIDTH))
    highest = max(samples)
    bars = [max(samples[i : i + step]) for i in range(0, len(samples), step)]
    return "".join(BARS[min(len(BARS) - 1, bar * len(BARS) // highest)] for bar in bars)


def slope(samples: list[int]) -> float:
    """The least-squares slope per sample."""
    if len(samples) < 2:
        return 0.0
    middle, mean = (len(samples) - 1) / 2, sum(samples) / len(samples)
    spread = sum((i - middle) ** 2 for i in range(len(samples)))
    return sum((i - middle) * (s - mean) for i, s in enumerate(samples)) / spread


def _watch_memory(config: Path, folder: Path) -> list[int]:
    """Resident memory of the child that runs `config`, from its start to its end."""
    log = folder / "daemon.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "benchmarks.child", str(config), str(folder / "figures.json")]
        child = subprocess.Popen(command, cwd=PROJECT, stdout=out, stderr=out)
        samples = []
        try:
            while child.poll() is None:
                samples.append(psutil.Process(child.pid).memory_info().rss)
                time.sleep(EVERY)
        finally:
            child.kill()
    if child.returncode:
        raise RuntimeError(f"The daemon ended with code {child.returncode}:\n{log.read_text()[-3000:]}")
    return [s for s in samples if s]
