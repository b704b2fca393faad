"""Options of an object store, as its clients get them."""

from __future__ import annotations

from adapters.object_store.options import Storage

KEYS = {"access_key_id": "AKID", "secret_access_key": "not-to-be-seen", "session_token": "nor-this", "region": "eu-west-1"}


def test_only_clients_get_the_secrets():
    storage = Storage.model_validate(KEYS)
    assert storage.config == {f"aws_{name}": value for name, value in KEYS.items()}
    assert storage.config.items() <= storage.to_delta_rs().items()
    assert storage.to_obstore()["config"] == storage.config
    assert "not-to-be-seen" not in repr(storage) + str(storage) + storage.model_dump_json()
