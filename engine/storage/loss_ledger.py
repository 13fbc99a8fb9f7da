"""Losses that somebody accepted: read from the ledger, told apart from those that are over.

`recover --allow-data-loss` gives up what cannot be had back, so that the rest of a partition can be used.  What was given up
stands in ``.waltzctl/accepted-losses`` (`formats.accepted_losses`), written by the same repair and taken back with it, and every
inspection names it until it is there again, or until somebody has the ledger forget it.

A loss is over when all of its transactions are here, or when the local low-water mark has risen to its last one since: a session
began that held them, and from there on the mark itself tells if they are lost again.  One that is disputed is over only when a
replica has told which records are right, or when somebody has the ledger forget it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.log import places
from waltzctl.engine.losses import Ids, without
from waltzctl.formats.accepted_losses import LEDGER_FILE_NAME, AcceptedLoss, Ledger, decode_ledger, encode_ledger

LEDGER_NAME = f"{disk.STATE_DIRECTORY}/{LEDGER_FILE_NAME}"
"""Its path below the storage directory, with slashes."""
_LIMIT = 64 << 20


def ledger_path(storage: PurePath) -> PurePath:
    """Where the ledger of a storage directory is, or would be."""
    return storage / disk.STATE_DIRECTORY / LEDGER_FILE_NAME


def read_ledger(storage: PurePath) -> Ledger:
    """What the ledger says; empty where there is none.  Takes no lock and writes nothing.  Raises DiskReadError."""
    try:
        return decode_ledger(places.read_range(ledger_path(storage), 0, _LIMIT))
    except FileNotFoundError:
        return Ledger()


def of_partition(losses: Iterable[AcceptedLoss], partition: int | None) -> tuple[AcceptedLoss, ...]:
    """The losses of one partition."""
    return tuple(loss for loss in losses if loss.partition == partition)


def still_lost(loss: AcceptedLoss, held: Sequence[Ids], local_low_water_mark: int | None) -> list[Ids]:
    """What of an accepted loss is not here again; nothing when it is over.

    `held`: ids that are here, intact.  `local_low_water_mark`: the mark in force, None where nothing tells it.
    """
    if loss.disputed:
        return [(loss.first, loss.last + 1)]
    mark = -1 if local_low_water_mark is None else local_low_water_mark
    if mark > loss.local_low_water_mark and mark >= loss.last:
        return []
    return without((loss.first, loss.last + 1), held)


def forget_partition(storage: PurePath, partition: int) -> None:
    """Drop what the ledger says of a partition whose files are deleted, durably.  Raises DiskError.

    A ledger that is damaged stays as it is: nothing of it may be lost on the way.
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
