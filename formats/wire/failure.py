"""How a storage node says on either port that a request failed: a text and the stack trace of the release's exception.

The text is the class name of the exception, and `: ` with its message where it has one; programs of the release compare its end
or the whole of it.  That is no stable interface (weakness S7), so our node puts a code of its own into the trace, as its first
element: class `waltzctl`, method the code, no file, line -1.  A released program prints it like any other element.

Source: release 0.13.2; the design documents do not describe it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from construct import Int32sb, Struct

from waltzctl.formats.wire.primitives import ListOf, NullableText, Text, ValueOf

CODE_CLASS = "waltzctl"
"""Class name of the stack element that carries our code."""
CODE_LINE = -1


@dataclass(frozen=True, slots=True)
class StackElement:
    """One line of a stack trace.  `line` is negative where there is none (-2: a native method)."""

    class_name: str
    method: str
    file: str | None
    line: int


STACK_ELEMENT_SCHEMA = Struct("class_name" / Text, "method" / Text, "file" / NullableText, "line" / Int32sb)
_SMALLEST_ELEMENT = 16  # three counts and the line


@dataclass(frozen=True, slots=True)
class Failure:
    """Text and stack trace, innermost call first."""

    message: str
    stack: tuple[StackElement, ...] = ()

    @classmethod
    def with_code(cls, message: str, code: str, stack: tuple[StackElement, ...] = ()) -> Failure:
        """A failure that carries one of our codes in front of the trace."""
        return cls(message, (StackElement(CODE_CLASS, code, None, CODE_LINE), *stack))

    @property
    def code(self) -> str | None:
        """Our stable code; None where the peer is no node of ours."""
        if not self.stack:
            return None
        first = self.stack[0]
        marked = first.class_name == CODE_CLASS and first.file is None and first.line == CODE_LINE
        return first.method if marked else None


FAILURE_SCHEMA = Struct(
    "message" / Text,
    "stack" / ListOf("stack trace", ValueOf(StackElement, STACK_ELEMENT_SCHEMA), _SMALLEST_ELEMENT),
)
FailureValue: Any = ValueOf(Failure, FAILURE_SCHEMA)
"""A failure inside a message."""
