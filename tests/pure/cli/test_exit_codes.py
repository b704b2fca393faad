"""Scripts and supervisors depend on the numbers of the exit codes."""

import re

from paths import PROJECT

from replicator.domain.errors import ExitCode


def test_exit_codes_are_those_of_the_readme():
    numbers = {name: int(code) for name, code in ExitCode.__members__.items()}
    assert numbers == {
        "OK": 0, "RUNTIME": 1, "CONFIG": 2, "ENVIRONMENT": 3, "DATA_LOSS": 4, "FENCED": 5, "REJECTS": 6,
    }  # fmt: skip
    [listed] = re.findall(r"Exit codes:([^.]+)\.", (PROJECT / "README.md").read_text())
    assert [int(number) for number in re.findall(r"\d", listed)] == sorted(numbers.values())
