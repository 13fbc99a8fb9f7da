"""Run a command of waltzctl with a thread beside it that looks every few milliseconds what every other thread is doing.

    python benchmarks/sampled.py OUTPUT serve DIRECTORY ...

OUTPUT, written at the end: a line for each distinct stack, ``thread;outermost;...;innermost COUNT``, as flame graph tools
read it.  A thread that waits for its next work is not counted.  The sampler sees a thread where it holds or gives up the
interpreter's lock, so that a long call into compiled code counts where it was made.
"""

from __future__ import annotations

import collections
import os
import sys
import threading
import time
from types import FrameType

INTERVAL = 0.002
_IDLE = {("threading.py", "wait"), ("queue.py", "get"), ("selectors.py", "select"), ("thread.py", "_worker")}


def _place(frame: FrameType) -> tuple[str, str]:
    return os.path.basename(frame.f_code.co_filename), frame.f_code.co_name


def _stack(frame: FrameType | None) -> list[str]:
    shown: list[str] = []
    while frame is not None:
        file, name = _place(frame)
        shown.append(f"{file.removesuffix('.py')}.{name}:{frame.f_lineno}")
        frame = frame.f_back
    return shown[::-1]


def sample(counts: collections.Counter[str], over: threading.Event) -> None:
    """Count stacks until it is over."""
    own = threading.get_ident()
    while not over.wait(INTERVAL):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own and _place(frame) not in _IDLE:
                counts[";".join([names.get(ident, "?"), *_stack(frame)])] += 1


def main() -> None:
    output, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    from waltzctl.__main__ import main as waltzctl

    counts: collections.Counter[str] = collections.Counter()
    over = threading.Event()
    sampler = threading.Thread(target=sample, args=(counts, over), name="sampler", daemon=True)
    began = time.process_time()
    sampler.start()
    try:
        waltzctl()
    finally:
        over.set()
        sampler.join()
        with open(output, "w") as out:
            out.write(f"# {time.process_time() - began:.2f} processor seconds\n")
            out.writelines(f"{stack} {count}\n" for stack, count in counts.most_common())


if __name__ == "__main__":
    main()
