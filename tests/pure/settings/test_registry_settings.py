"""`registry` of a source: options, and what is passed to the decoder."""

from __future__ import annotations

import pytest

from replicator.settings import to_plain_options
from replicator.wiring import adapters

SHOP = "    format: debezium_json\n"
SECRET = "hunter2-secret"


def avro(folder, said: str | None = "{url: 'http://registry:8081'}"):
    text = folder.file.read_text()
    assert SHOP in text
    more = "" if said is None else f"    registry: {said}\n"
    folder.write(text.replace(SHOP, f"    format: debezium_avro\n{more}", 1))


def shop(loaded):
    ((name, source),) = [(n, s) for n, s in loaded.settings.sources.items() if s.registry]
    return name, source


def test_settings_are_passed_to_the_decoder_only(folder, monkeypatch):
    avro(folder, "{url: 'https://registry:8081/', user: reader, password: '${PASSWORD}', ca: ./ca.pem}")
    folder.environ["PASSWORD"] = SECRET
    loaded = folder.load()
    name, source = shop(loaded)
    assert SECRET not in repr(loaded.settings)
    seen = []
    monkeypatch.setattr(adapters, "load_adapter", lambda *_: seen.append)
    adapters.build_decoder(loaded, name)
    ca = str(folder.root / "ca.pem")
    given = to_plain_options(seen[0].registry)
    assert given == {"url": "https://registry:8081", "user": "reader", "password": SECRET, "ca": ca}
    assert "registry" in to_plain_options(source) and "registry" not in adapters.list_options(source)


def test_password_from_a_file(folder):
    avro(folder, "{url: 'http://registry:8081', user: reader, password: '${PASSWORD}'}")
    (folder.root / "secret").write_text(SECRET + "\n")
    folder.environ["PASSWORD_FILE"] = str(folder.root / "secret")
    assert shop(folder.load())[1].registry.password.get_secret_value() == SECRET


def test_avro_source_needs_a_registry(folder):
    avro(folder, None)
    finding = folder.only()
    assert finding.code == "missing" and "registry: {url:" in str(finding)


def test_other_formats_refuse_a_registry(folder):
    text = folder.file.read_text()
    folder.write(text.replace(SHOP, f"{SHOP}    registry: {{url: 'http://registry:8081'}}\n", 1))
    finding = folder.only()
    assert finding.code == "inapplicable" and "means nothing with format 'debezium_json'" in finding.message


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{url: registry:8081}", "must be a URL"),
        ("{url: 'http://reader:secret@registry:8081'}", "without user and password"),
        ("{url: 'http://registry', user: reader}", "needs both 'user' and 'password'"),
        ("{url: 'http://registry', password: x}", "needs both 'user' and 'password'"),
        ("{url: 'http://registry', user: 'a:b', password: x}", "a colon"),
        ("{url: 'http://registry', ca: ./ca.pem}", "means nothing without https"),
        ("{url: 'http://registry', usr: reader}", "unknown key 'usr'"),
        ("{user: reader, password: x}", "url"),
    ],
)
def test_invalid_options_are_refused(folder, said, why):
    avro(folder, said)
    finding = folder.only()
    assert why in str(finding) and "secret@" not in str(finding)
