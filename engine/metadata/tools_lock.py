"""The lock of the operators' tools: an ephemeral znode, which the tools of release 0.13.2 take as well.

It only keeps tools out of one another's way: what waltzctl writes under it is guarded by the versions of
what it read.

Source: release 0.13.2 (its zookeeper tool).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from waltzctl.engine.errors import DeadlineError, PeerError
from waltzctl.engine.metadata.metadata_store import (
    MetadataStore,
    NodeExistsError,
    NodeMissingError,
    SessionLostError,
)
from waltzctl.engine.net.futures import taken
from waltzctl.formats.znodes import LOCK_PATH

LOCK_SECONDS = 10.0
"""Seconds to wait for another tool that holds the lock."""
_CANCELLED_SECONDS = 1.0
"""Seconds for which a caller that was cancelled waits until it has given the lock back."""


@contextlib.asynccontextmanager
async def tools_lock(store: MetadataStore) -> AsyncIterator[None]:
    """Hold the lock of the release's tools.  If it is lost meanwhile, the versions still guard what is written."""
    gone = asyncio.Event()
    lost = store.lost  # taken before the lock is created, so that the session's end cannot be missed
    # a deadline for waiting only: calls have the store's own deadline
    until = asyncio.get_running_loop().time() + LOCK_SECONDS
    try:
        while True:
            gone.clear()
            if await _take_lock(store, lost):
                break
            if await store.exists(LOCK_PATH, gone.set) is not None:
                async with asyncio.timeout_at(until):
                    await gone.wait()
    except TimeoutError:
        raise DeadlineError(
            store.where,
            f"another tool holds {LOCK_PATH} for {LOCK_SECONDS:g} s",
            advice="wait for it; the lock of one that died goes with its session",
        ) from None
    give_back = _give_lock_back
    try:
        yield
    except asyncio.CancelledError:
        give_back = _give_lock_back_soon
        raise
    finally:
        await asyncio.shield(asyncio.ensure_future(give_back(store, lost)))  # also where it is cancelled here


async def _take_lock(store: MetadataStore, lost: asyncio.Future[str]) -> bool:
    """Create the lock; False if there is one.

    A caller that is cancelled meanwhile does not get it, though it may be created all the same, and its connection stay open.
    """
    taking = asyncio.ensure_future(store.create(LOCK_PATH, ephemeral=True))
    try:
        await asyncio.shield(taking)
    except NodeExistsError:
        return False
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.ensure_future(_give_lock_back_soon(store, lost, taking)))
        raise
    return True


async def _give_lock_back_soon(
    store: MetadataStore, lost: asyncio.Future[str], taking: asyncio.Task[str] | None = None
) -> None:
    """As `_give_lock_back`, behind a cancellation: raises nothing in its place, and waits for silent metadata only shortly.

    What is not done by then goes on behind the caller, and at the latest the end of the session gives the lock back.
    """
    giving = asyncio.ensure_future(_give_lock_back(store, lost, taking))
    giving.add_done_callback(taken)
    await asyncio.wait([giving], timeout=_CANCELLED_SECONDS)


async def _give_lock_back(
    store: MetadataStore, lost: asyncio.Future[str], taking: asyncio.Task[str] | None = None
) -> None:
    """Delete the lock, once it is created (`taking`), if that succeeds.

    `lost`: of the session of the lock.  If the store does not answer the lock goes with the session; what was changed under it is
    committed.
    """
    with contextlib.suppress(NodeExistsError, NodeMissingError, SessionLostError, PeerError):
        if taking is not None:
            await taking
        if not lost.done():  # otherwise the lock went with the session; one that exists now is another tool's
            await store.delete(LOCK_PATH)
