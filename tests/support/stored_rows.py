"""A plain Delta table with appends in an object store, read as a stream of rows."""

from __future__ import annotations

from typing import Any

import obstore
from obstore.store import S3Store
from servers.object_store import ObjectStore

from adapters.object_store.options import Storage, split_url
from support.table_of_rows import RowsStream


class StoredRowsStream(RowsStream):
    """`RowsStream` in a bucket."""

    def __init__(self, s3: ObjectStore, batch_records: int, changes: str) -> None:
        lake = s3.lake()
        self.storage = Storage.model_validate(lake["storage"])
        self.reached = self.storage.to_delta_rs()
        super().__init__(str(lake["path"]), batch_records, changes)

    def text(self, file: str) -> str:
        store, key = self._make_position(file)
        return bytes(obstore.get(store, key).bytes()).decode()

    def write(self, file: str, text: str) -> None:
        store, key = self._make_position(file)
        obstore.put(store, key, text.encode())

    def remove(self, file: str) -> None:
        store, key = self._make_position(file)
        obstore.delete(store, key)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "storage": self.storage.model_dump(exclude_none=True)}

    def _make_position(self, file: str) -> tuple[Any, str]:
        bucket, key = split_url(self.path)
        return S3Store(bucket, **self.storage.to_obstore()), f"{key}/{file}"
