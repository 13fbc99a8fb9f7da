"""The ledger of accepted losses: transactions that an operator gave up with ``recover --allow-data-loss``.

The ledger is ``.waltzctl/accepted-losses`` (`formats.accepted_losses`).  The repair that gives transactions up writes it, and the
undo of that repair restores it.  Inspections report an accepted loss until it is *over*:

============  =========================================================================================================
loss          is over when
============  =========================================================================================================
ordinary      all of its transactions are here again; or the local low-water mark has since risen to its last one: then
              a session began with these transactions, and the mark proves a new loss of them
disputed      (two records had the same id, one was kept, and nothing proved which is right) a replica has confirmed
              which records are right
any           the operator removes it from the ledger (``recover --forget-losses``)
============  =========================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.log import places
from waltzctl.engine.losses import Ids, without
from waltzctl.formats.accepted_losses import LEDGER_FILE_NAME, AcceptedLoss, Ledger, decode_ledger, encode_ledger

LEDGER_NAME = f"{disk.STATE_DIRECTORY}/{LEDGER_FILE_NAME}"
"""Path of the ledger relative to the storage directory, with slashes."""
_LIMIT = 64 << 20


def ledger_path(storage: PurePath) -> PurePath:
    """Path of a storage directory's ledger, whether or not it exists."""
    return storage / disk.STATE_DIRECTORY / LEDGER_FILE_NAME


def read_ledger(storage: PurePath) -> Ledger:
    """Read the ledger; empty where there is none.  Takes no lock and writes nothing.  Raises DiskReadError."""
    try:
        return decode_ledger(places.read_range(ledger_path(storage), 0, _LIMIT))
    except FileNotFoundError:
        return Ledger()


def still_lost(loss: AcceptedLoss, held: Sequence[Ids], local_low_water_mark: int | None) -> list[Ids]:
    """The transactions of an accepted loss that are still missing; empty when the loss is over.

    `held`: ranges of ids that are here, intact.  `local_low_water_mark`: the mark in force, None when it is unknown.
    """
    if loss.disputed:
        return [(loss.first, loss.last + 1)]
    mark = -1 if local_low_water_mark is None else local_low_water_mark
    if mark > loss.local_low_water_mark and mark >= loss.last:
        return []
    return without((loss.first, loss.last + 1), held)


def forget_partition(storage: PurePath, partition: int) -> None:
    """Drop the losses of a partition whose files are deleted, durably.  Raises DiskError.

    A damaged ledger stays as it is, because writing it anew would lose its damaged part.
    """
    ledger = read_ledger(storage)
    kept = [loss for loss in ledger.losses if loss.partition != partition]
    if ledger.fault is not None or len(kept) == len(ledger.losses):
        return
    if kept:
        disk.write_whole(ledger_path(storage), encode_ledger(kept))
    else:
        disk.unlink(ledger_path(storage))
        disk.sync_directory(ledger_path(storage).parent)
