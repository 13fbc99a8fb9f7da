"""What a shell makes of the words that we print for it."""

import os
import shlex
import subprocess

import pytest

from waltzctl.engine.shell_words import shell_join, shell_quote
from waltzctl.values import printable

WORDS = [
    b"",
    b"plain",
    b"it's",
    b"a b",
    b"caf\xc3\xa9",
    b"\xff",
    b"\xff7",
    b"f\xfff'\\\\",
    b"a\nb\tc\x1b[0m",
    b"\xe2\x80\x8b",
    b"$\xff`ls`!",
]


@pytest.mark.parametrize("word", WORDS)
def test_a_shell_reads_the_bytes_back_from_what_may_be_shown(word: bytes) -> None:
    said = shell_quote(os.fsdecode(word))
    assert printable(said) == said
    made = subprocess.run(["bash", "-c", f"printf '%s\\0' {said}"], stdout=subprocess.PIPE, check=True)
    assert made.stdout == word + b"\0"


def test_words_that_can_be_shown_are_quoted_as_ever() -> None:
    words = ["waltzctl", "verify", "a b", "it's", "café", ""]
    assert shell_join(words) == shlex.join(words)


def test_what_no_bytes_stand_for_is_written_nevertheless() -> None:
    """Half of a pair out of a JSON text."""
    assert shell_quote("\ud800") == r"$'\355\240\200'"
