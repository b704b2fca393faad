"""A test fails if it uses more than its tier allows."""

import socket
import subprocess
import sys
from threading import Thread

import pytest
from tiers import FORBIDDEN, Forbidden, check_servers, limited_to


def bind():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))


def start_process():
    subprocess.run([sys.executable, "-c", ""], check=True)


def import_spark():
    sys.modules.pop("pyspark", None)
    __import__("pyspark")


def assert_forbidden(touch):
    with pytest.raises(Forbidden):
        touch()


TOUCHES = {"socket.bind": bind, "subprocess.Popen": start_process, "import pyspark": import_spark}


@pytest.mark.parametrize(("tier", "touch"), [(tier, touch) for tier in FORBIDDEN for touch in TOUCHES])
def test_forbidden_access_of_a_tier_fails(tier, touch, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    # Other tests of this worker may have left a session.
    monkeypatch.setattr("tiers.has_spark_session", lambda: False)
    if touch in FORBIDDEN[tier]:
        with limited_to(tier) as touched:
            assert_forbidden(TOUCHES[touch])
        assert touched == [touch]
    else:
        with limited_to(tier) as touched:
            TOUCHES[touch]()
        assert not touched


def test_access_of_a_thread_counts():
    with limited_to("pure") as touched:
        thread = Thread(target=assert_forbidden, args=(bind,))
        thread.start()
        thread.join()
    assert touched == ["socket.bind"]


def test_forbidden_server_of_a_tier_fails():
    check_servers("component", {"postgres_server", "own_postgres_server", "tmp_path"}, "one")
    with pytest.raises(Forbidden, match="PostgreSQL"):
        check_servers("process", {"postgres_server"}, "one")
    with pytest.raises(Forbidden, match="Kafka, PostgreSQL"):
        check_servers("component", {"postgres_server", "broker"}, "two")
