"""The list of planted faults is valid: each fault can be planted, and its tests run."""

import re
from functools import cache

from paths import PROJECT
from planted_faults import main, read_faults

FAULTS = read_faults()


@cache
def read(file):
    path = PROJECT / file
    return path.read_text() if path.exists() else ""


@cache
def read_suites():
    """Published suites, whose tests a class of a test file may inherit."""
    return "".join(file.read_text() for file in sorted((PROJECT / "replicator" / "testing").glob("*.py")))


def find_definition(name, text):
    """From the first decorator of a function or class to the next definition on its level; empty if there is none."""
    found = re.search(rf"^( *)(?:def|class) {name}\b.*\n(?:(?!\1(?:def|class|@)).*\n)*", text, re.MULTILINE)
    return text[text.rfind("\n\n", 0, found.start()) + 1 : found.end()] if found else ""


def runs_by_default(test):
    """A mark of single parameters leaves the others in the default run. What `always` of a suite leaves out, only the run of
    the faults shows."""
    file, *names = test.partition("[")[0].split("::")
    if not (text := read(file)):
        return False
    for name in names:
        text = find_definition(name, text) or find_definition(name, read_suites())
        if not text or "@pytest.mark.long" in re.split(r"^ *(?:def|class) ", text, maxsplit=1, flags=re.MULTILINE)[0]:
            return False
    return re.search(r"^pytestmark.*mark\.long", read(file), re.MULTILINE) is None


def test_list_has_fifty_faults_with_unique_names():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 50


def test_unknown_name_is_refused(capsys):
    """Without a test to run, pytest would run all of them."""
    assert main(["--help"]) == 2
    assert "No fault has such a name." in capsys.readouterr().err


def test_every_fault_can_be_planted():
    counts = {fault.name: read(fault.file).count(fault.old) for fault in FAULTS}
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert all(fault.old != fault.new for fault in FAULTS)


def test_tests_of_every_fault_run_by_default():
    assert not [fault.name for fault in FAULTS if not fault.tests]
    assert not [test for fault in FAULTS for test in fault.tests if not runs_by_default(test)]
