r"""Words of the command lines that we print, so that a shell takes them for what they are when they are pasted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def shell_quote(word: str) -> str:
    r"""The word as a shell reads it back.

    What shows it on a terminal escapes control characters, and the bytes of a name that is no UTF-8 (`printable`); in quotation
    marks the escape would stand for itself, and no longer for the byte.  So such a word is written as ``$'...'``, of printable
    characters alone.  Its bytes have three octal digits each: after ``\x`` shells disagree on how many digits follow.
    """
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_in_dollar_quotes, word))}'"


def shell_join(words: Iterable[str]) -> str:
    """Words as one command line."""
    return " ".join(map(shell_quote, words))


def _in_dollar_quotes(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    is_byte = 0xDC80 <= code <= 0xDCFF  # of a name, which the file system's encoding could not decode
    data = bytes((code - 0xDC00,)) if is_byte else character.encode(errors="surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in data)
