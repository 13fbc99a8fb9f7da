"""The highest transaction and session ids: both are signed 64-bit integers on disk and on the wire."""

from __future__ import annotations

LAST_TRANSACTION_ID = 2**63 - 1
"""No transaction can follow it."""
LAST_SESSION_ID = 2**63 - 1
"""No session can follow it."""
