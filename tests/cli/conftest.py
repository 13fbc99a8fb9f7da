"""What tests of commands share: most of what is damaged here was written a moment ago."""

from tests.left_files import soon_quiet

__all__ = ["soon_quiet"]
