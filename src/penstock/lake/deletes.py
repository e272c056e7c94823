"""Delete files for a commit: one per data file, replacing any earlier one.

DuckDB 1.5 keeps a single delete file per data file, whose rows record the snapshot that deleted
them. That snapshot's id is only known inside the commit, so a file written for another id is
written again.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.lake.model import DeleteFile
from penstock.lake.parquet import write_delete_file
from penstock.lake.scan import read_delete_file
from penstock.lake.storage import Storage
from penstock.lake.transaction import AddDeleteFile, DeleteRows, Operation, Transaction


class Materialiser:
    """Turns the deletes of a transaction into delete files for a given snapshot."""

    def __init__(self, storage: Storage, transaction: Transaction) -> None:
        self._storage = storage
        self._transaction = transaction
        self._first: dict[int, AddDeleteFile] = {}
        self._written: tuple[int, list[Operation]] | None = None

    @property
    def is_needed(self) -> bool:
        """Whether the transaction needs any delete file."""
        return any(isinstance(op, DeleteRows) for op in self._transaction.operations)

    def __call__(self, snapshot_id: int) -> list[Operation]:
        """The transaction's operations, with every delete file written."""
        if not self.is_needed:
            return self._transaction.operations
        if self._written is None or self._written[0] != snapshot_id:
            self._written = (snapshot_id, list(self._operations(snapshot_id)))
        return self._written[1]

    def _operations(self, snapshot_id: int) -> Iterator[Operation]:
        for index, operation in enumerate(self._transaction.operations):
            if not isinstance(operation, DeleteRows):
                yield operation
                continue
            current = [delete for delete in operation.file.deletes if delete.end is None]
            if current:
                yield self._write(operation, current[0], snapshot_id)
            else:
                # The first delete file of a data file names no snapshot, so it is valid for any and
                # written once.
                if index not in self._first:
                    self._first[index] = self._write(operation, None, snapshot_id)
                yield self._first[index]

    def _write(
        self, operation: DeleteRows, replaces: DeleteFile | None, snapshot_id: int
    ) -> AddDeleteFile:
        deleted = {int(position): snapshot_id for position in operation.positions}
        if replaces is not None:
            positions, snapshots = read_delete_file(self._storage, replaces)
            for position, at in zip(positions.tolist(), snapshots.tolist(), strict=True):
                deleted[position] = min(at, deleted.get(position, at))
        file = write_delete_file(
            self._storage,
            operation.table.path,
            operation.file.path,
            deleted.items(),
            with_snapshots=replaces is not None,
            token=self._transaction.token,
        )
        return AddDeleteFile(operation.table, operation.file.id, file, replaces)
