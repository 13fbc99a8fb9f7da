"""Scenes side by side, each in a process of its own, told one after the other as if they had been played in that order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkProcess

from stage import Stage, UnexpectedError

Scene = Callable[[Stage], None]
POLL = 0.05
"""Seconds between two looks at what a scene said."""
_CONTEXT = multiprocessing.get_context("fork")  # a scene begins with the stage as it is


class _Played:
    """A scene that is played in a process of its own; its output goes to a file without a name."""

    def __init__(self, scene: Scene, stage: Stage) -> None:
        self.name = scene.__name__
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._commands = _CONTEXT.Value("i", 0)
        self._process: ForkProcess = _CONTEXT.Process(target=self._play, args=(scene, stage))
        self._process.start()

    def _play(self, scene: Scene, stage: Stage) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        os.dup2(self._output.fileno(), sys.stdout.fileno())
        before = stage.commands
        try:
            scene(stage)
        except UnexpectedError as error:
            print(f"\nFAILED  {error}")
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        finally:
            self._commands.value = stage.commands - before
            sys.stdout.flush()

    @property
    def ended(self) -> bool:
        return not self._process.is_alive()

    def tell(self, while_waiting: Callable[[], None]) -> int:
        """Print what it says until its end; how many commands it ran.  Raises UnexpectedError where it failed."""
        place = 0
        while True:
            ended = self.ended  # before what is said is read: nothing comes after the end
            said = os.pread(self._output.fileno(), 1 << 20, place)
            place += len(said)
            sys.stdout.flush()
            sys.stdout.buffer.write(said)
            sys.stdout.buffer.flush()
            if ended and not said:
                break
            while_waiting()
            time.sleep(0 if said else POLL)
        if self._process.exitcode:
            raise UnexpectedError(f"the scene {self.name} ended with {self._process.exitcode}")
        return int(self._commands.value)

    def end(self) -> None:
        """Take it away, with what it started: a scene ends its own processes when it is interrupted."""
        if not self.ended:
            self._process.terminate()
        self._process.join()
        self._output.close()


def play(stage: Stage, scenes: Sequence[Scene], begin_with: Scene, at_once: int) -> None:
    """Play scenes that do not depend on each other, `at_once` of them at a time, told in their order.

    `begin_with`: the one that takes longest, begun first unless they come one by one.

    Raises UnexpectedError for the first, in their order, that fails.
    """
    waiting = sorted(scenes, key=lambda scene: at_once > 1 and scene is not begin_with)
    playing: dict[Scene, _Played] = {}

    def start_more() -> None:
        while waiting and sum(not one.ended for one in playing.values()) < at_once:
            scene = waiting.pop(0)
            playing[scene] = _Played(scene, stage)

    try:
        for scene in scenes:
            while scene not in playing:
                start_more()
                time.sleep(POLL)
            stage.commands += playing[scene].tell(start_more)
    finally:
        for one in playing.values():
            one.end()
