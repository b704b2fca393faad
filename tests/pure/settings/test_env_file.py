"""`.env` beside the folder of the config: values of variables that the environment does not set."""

from __future__ import annotations

import pytest

from replicator.domain.errors import ConfigProblem
from replicator.settings import load_settings
from replicator.settings.environment import add_env_file, render_env_file


@pytest.fixture
def read(tmp_path):
    def read(text: str, **environ: str) -> dict[str, str]:
        (tmp_path / ".env").write_text(text)
        return add_env_file(environ, tmp_path)

    return read


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("export A=b", "b"),
        ("export \t A=b", "b"),
        ("A=", ""),
        ("A='b c'", "b c"),
        ('A="b c"', "b c"),
        ("A=p#q", "p#q"),
        ("A=postgresql://u:p%40q@h:5432/d?sslmode=require", "postgresql://u:p%40q@h:5432/d?sslmode=require"),
    ],
)
def test_value_is_read_as_a_shell_reads_it(read, line, value):
    assert read(f"# a comment\n\n  {line}  \n") == {"A": value}


@pytest.mark.parametrize("value", ["", "plain", 'it\'s $HOME `x` "y" \\z', "a#b c", "ä", "two\nlines=1\n'", "\u2028\f"])
def test_written_value_is_read_again(read, value):
    assert read(render_env_file({"A": value}, "made by a test")) == {"A": value}


@pytest.mark.parametrize("line", ["A", "A b", "1A=b", "A = b", "A=b c", "A='b", "=b"])
def test_line_without_a_variable_is_refused(read, line):
    with pytest.raises(ConfigProblem, match=r"\.env:2 is not a variable\. Write"):
        read(f"OTHER=secret\n{line}")


def test_byte_order_mark_is_no_part_of_a_name(read):
    assert read("\ufeffA=b") == {"A": "b"}


def test_environment_goes_before_the_file(read):
    assert read("A=file\nB=file", A="environment") == {"A": "environment", "B": "file"}
    assert read("A=file\nB_FILE=file", A_FILE="/run/a", B="b") == {"A_FILE": "/run/a", "B": "b"}


def test_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / ".env").write_bytes(b"A=\xff")
    with pytest.raises(ConfigProblem, match="not UTF-8"):
        add_env_file({}, tmp_path)


def test_config_takes_values_from_the_file(folder, monkeypatch):
    monkeypatch.delenv("READERS", raising=False)
    folder.change("    group_id: readers", "    group_id: ${READERS}")
    (folder.root / ".env").write_text("READERS=of-the-file\n")
    assert load_settings(folder.file).settings.sources["shop"].group_id == "of-the-file"
