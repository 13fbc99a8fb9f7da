"""A worker keeps some of the memory that it freed: large batches that come and go are not taken from the system each time."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from waltzctl.engine import freed_memory

PROGRAM = """
import resource, sys
import numpy as np
from waltzctl.engine.freed_memory import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
def come_and_go():
    arrays = [np.zeros(1 << 16) + 1 for _ in range(12)]  # of half a megabyte
    while arrays:
        arrays.pop()
for _ in range(3):
    come_and_go()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    come_and_go()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_batches_that_come_and_go_fault_no_pages() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("the allocator is not glibc's")
    assert _faults("kept") < 200 < _faults("as it is") // 5


def test_an_allocator_without_such_a_wish_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert freed_memory.keep_freed_memory.__wrapped__() is False
