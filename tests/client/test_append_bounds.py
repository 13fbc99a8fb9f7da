"""What no server takes of an append."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waltzctl.engine.client import append_bounds
from waltzctl.engine.client.append_bounds import OversizedAppendError, lock_ids
from waltzctl.formats.lock_id import lock_id


def test_as_many_locks_as_a_server_takes_have_their_ids_and_one_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_bounds, "DEFAULT_LIMITS", replace(append_bounds.DEFAULT_LIMITS, max_list=3))
    locks = [("lock", number) for number in range(4)]
    assert lock_ids((), 7) == ()
    assert lock_ids(locks[:3], 7) == tuple(lock_id(*one) for one in locks[:3])
    with pytest.raises(OversizedAppendError, match=r"^an append with 4 locks .* are 3; make one lock stand") as told:
        lock_ids(locks, 7)
    assert told.value.place == 7
