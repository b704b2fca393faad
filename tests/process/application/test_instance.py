"""One running instance per pipeline and state folder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.full_disk import full_disk

from replicator.application.state_folder import InstanceLock
from replicator.domain.errors import EnvironmentProblem, Fenced

HOLDER = """
import sys, time, pathlib
from replicator.application.state_folder import InstanceLock
InstanceLock(pathlib.Path(sys.argv[1]), "shop").acquire()
print("held", flush=True)
time.sleep(600)
"""


def test_second_instance_is_fenced_until_the_first_ends(tmp_path):
    first, second = InstanceLock(tmp_path / "state", "shop"), InstanceLock(tmp_path / "state", "shop")
    first.acquire()
    with pytest.raises(Fenced, match=rf"pipeline shop runs \(process {os.getpid()}\)"):
        second.acquire()
    InstanceLock(tmp_path / "other", "shop").acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_killed_instance_leaves_no_lock(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(Fenced, match=f"process {holder.pid}"):
            InstanceLock(tmp_path, "shop").acquire()
        holder.kill()
        holder.wait()
    InstanceLock(tmp_path, "shop").acquire()


def test_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(EnvironmentProblem, match="state"):
        InstanceLock(tmp_path / "state", "shop").acquire()


def test_state_folder_on_a_full_disk_can_be_locked(tmp_path):
    with full_disk(), InstanceLock(tmp_path, "shop"), pytest.raises(Fenced, match="process unknown"):
        InstanceLock(tmp_path, "shop").acquire()


def test_released_lock_is_free_while_a_forked_child_lives(tmp_path):
    """A release by the child does not free the lock."""
    first, (ends, end) = InstanceLock(tmp_path, "shop"), os.pipe()
    first.acquire()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ends, 1)
        os._exit(0)
    brief = os.fork()
    if brief == 0:
        first.release()
        os._exit(0)
    try:
        os.waitpid(brief, 0)
        with pytest.raises(Fenced):
            InstanceLock(tmp_path, "shop").acquire()
        first.release()
        with InstanceLock(tmp_path, "shop"):
            pass
    finally:
        os.close(end)
        os.close(ends)
        os.waitpid(child, 0)
