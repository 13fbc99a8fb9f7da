"""The ends of what numbers a log: each is a signed 64-bit integer on disk and on the wire."""

from __future__ import annotations

LAST_TRANSACTION_ID = 2**63 - 1
"""No transaction can follow it."""
LAST_SESSION_ID = 2**63 - 1
"""No session can follow it."""
