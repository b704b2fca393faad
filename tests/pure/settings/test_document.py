"""YAML that is broken, hostile or too large: a finding with its line."""

from __future__ import annotations

import os

import pytest

from replicator.settings import load_settings
from replicator.settings.document import Origin, parse_document


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", "empty", 1),
        ("# nothing\n", "empty", 1),
        ("- a\n", "empty", 1),
        ("just text\n", "empty", 1),
        ("pipeline: x\nsources: [\n", "yaml", 3),
        ("pipeline: x\n  engine: y\n", "yaml", 2),
        ("pipeline: x\n\tengine: y\n", "yaml", 2),
        ("pipeline: 'x\n", "yaml", 2),
        ("a: *nowhere\n", "yaml", 1),
        ("a: 1\n---\nb: 1\n", "yaml", 2),
        ("%YAML 9.9\n---\na: 1\n", "yaml", 1),
        ("a: \x00\n", "yaml", 1),
        pytest.param("[" * 3_000, "yaml", 1, marks=pytest.mark.slow),
        ("a: " + "{a: " * 40 + "1" + "}" * 40, "too_large", 1),
        ("&a [*a]", "too_large", 1),
        ("x" * 600_000, "too_large", 1),
    ],
)
def test_text_that_is_no_config_is_refused(folder, text, code, line):
    folder.write(text)
    finding = folder.only()
    assert (finding.code, finding.line, finding.file) == (code, line, str(folder.file))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sinks:\n  lake: {kind: delta, path: ${NOPE}}\n", True),
        ("sinks:\n  lake: {kind: delta,\n    path: ${NOPE}, schema: x}\n", True),
        ("sinks:\n  lake: {kind: delta, path: '${NOPE}', a: }b: c}\n", False),
        ("sinks: [\n", False),
    ],
)
def test_unquoted_reference_in_a_mapping_has_a_hint(folder, text, hint):
    folder.write(text)
    finding = folder.only()
    assert finding.code == "yaml" and ("in quotes" in finding.suggestion) is hint


def test_named_pipe_is_refused(folder):
    folder.file.unlink()
    os.mkfifo(folder.file)
    assert "it is a pipe" in folder.only().message


def test_pipe_opened_by_the_shell_is_read(folder):
    text = folder.file.read_text()
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    assert load_settings(f"/dev/fd/{reading}", environ={}).settings.pipeline
    os.close(reading)


def test_alias_bomb_is_refused_quickly(folder):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    folder.write("\n".join(lines))
    assert folder.only().code == "too_large"


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [touch /tmp/never]", "!x {a: 1}", "!!binary aGk=", "!!set {a}"]
)
def test_tags_are_refused(folder, tag):
    line = folder.change("state: ./state", f"state: {tag}")
    assert ("tag", line) in {(finding.code, finding.line) for finding in folder.findings()}


def test_all_duplicate_keys_point_at_the_first(folder):
    line = folder.change("state: ./state", "state: ./x\nstate: ./other\nengine: local")
    found = [finding for finding in folder.findings() if finding.code == "duplicate_key"]
    assert [finding.line for finding in found] == [line + 1, line + 2]
    assert found[0].message.endswith(f"{folder.file}:{line}")


@pytest.mark.parametrize(("key", "suggestion"), [("1", "quotes"), ("[a]", "quotes"), ("<<", "defaults"), ("~", "quotes")])
def test_keys_that_are_no_text_are_refused(folder, key, suggestion):
    line = folder.change("state: ./state", f"{key}: {{a: b}}")
    finding = folder.only()
    assert finding.line == line
    assert suggestion in finding.suggestion


def test_aliases_are_accepted(folder):
    folder.change(
        "    to:\n      - sink: raw\n      - sink: lake\n", "    to: &both\n      - sink: raw\n      - sink: lake\n"
    )
    text = folder.file.read_text().replace("    to:\n      - sink: target\n\n", "    to: *both\n\n")
    folder.write(text)
    assert [entry.sink for entry in folder.load().settings.tables[2].to] == ["raw", "lake"]


def test_yaml_1_2_words_are_text(folder):
    folder.change("    group_id: readers", "    group_id: no")
    assert folder.load().settings.sources["shop"].group_id == "no"


def test_unreadable_files_are_reported(folder, tmp_path):
    folder.file = tmp_path / "config" / "absent.yaml"
    assert folder.only().code == "unreadable" and "REPLICATOR_CONFIG, or try `replicator init`" in folder.only().suggestion
    folder.file = tmp_path
    assert folder.only().code == "unreadable"
    folder.file = tmp_path / "latin.yaml"
    folder.file.write_bytes("a: \xe9".encode("latin-1"))
    assert folder.only().code == "yaml"


def test_key_without_a_value_is_refused(folder):
    line = folder.change("    group_id: readers", "    group_id:")
    finding = folder.only()
    assert (finding.code, finding.line) == ("no_value", line)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("tables:\n  - match: a\n   to: b\n", 3, 4, "is not indented like its neighbours"),
        ("a:\n  b: 1\n c: 2\n", 3, 2, "is not indented like its neighbours"),
        ("a: 1\n  b: 2\n", 2, 4, "a ':' stands where no key can be"),
        ("a: [1, 2\nb: 3\n", 2, 2, "a '[' is not closed"),
        ("a: {b: 1\nc: 2\n", 2, 2, "a '{' is not closed"),
        ("a: 'x\n", 2, 1, "quotes are opened and not closed"),
        ("a:\n\tb: 1\n", 2, 1, "a tab"),
        ("a: @x\n", 1, 4, "no value can begin with"),
    ],
)
def test_syntax_error_is_explained_with_its_line(text, line, column, words):
    (problem,) = parse_document(text, lambda at, _: Origin("c.yaml", at + 1)).problems
    assert problem.message.startswith(f"is not valid YAML at column {column}: ") and words in problem.message
    assert problem.suggestion
