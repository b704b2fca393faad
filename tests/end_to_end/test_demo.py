"""`replicator demo` of the installed package: it needs no config, and removes everything."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import psutil
import pytest

from .installed import clean_environment

OF_ANOTHER_PIPELINE = {"REPLICATOR_CONFIG": "/no/such.yaml", "REPLICATOR_ENV": "prod", "TARGET_DSN_FILE": "/no/such/file"}
"""The demo is not led there."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def start(installed, tmp_path):
    """Starts the demo in an empty folder. Its own folder is below another one."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()

    def start_demo(*options):
        return subprocess.Popen(
            [installed.program, "demo", *options],
            cwd=tmp_path / "here",
            env={**clean_environment(), "TMPDIR": str(tmp_path / "temporary"), **OF_ANOTHER_PIPELINE},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start_demo


def list_left(tmp_path):
    """Remaining files of the demo, and processes with its folder in their command."""
    files = [*(tmp_path / "here").iterdir(), *(tmp_path / "temporary").glob("replicator-demo*")]
    commands = (" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    return [*files, *(command for command in commands if f"{tmp_path}/temporary" in command)]


def test_demo_ends_with_equal_targets_and_removes_everything(start, tmp_path):
    """With `--keep`, the printed commands read the targets, and remove them."""
    demo = start("--json", "--keep")
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    result = json.loads(out)["result"]
    assert [table["table"] for table in result["tables"]] == ["customers", "products", "orders", "order_items"]
    for table in result["tables"]:
        assert len(table["targets"]) == 5
        assert {(t["rows"], t["differ"]) for t in table["targets"].values()} == {(table["rows"], 0)}
    assert {row["city"] for row in result["newest"] if row["first_name"] == "Hedy"} == {"Hollywood"}
    enter, _, query, _, remove = (line.strip() for line in err.partition("In another terminal:\n")[2].splitlines()[:5])
    script = f"{enter}; {query} --json; {remove}"
    done = subprocess.run(["bash", "-euc", script], env=clean_environment(), capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout.splitlines()[0])["result"]) == 6
    assert list_left(tmp_path) == []


def test_interrupted_demo_removes_everything(start, tmp_path):
    """With `--keep` too: only a complete demo is worth keeping."""
    demo, printed = start("--keep"), ""
    while "healthy" not in (line := demo.stderr.readline()):
        assert line, f"it ended before a server was there: {printed}"
        printed += line
    demo.terminate()
    time.sleep(0.5)
    demo.send_signal(signal.SIGINT)  # an impatient second one
    _, err = demo.communicate()
    assert demo.returncode == 130, err
    assert list_left(tmp_path) == []
