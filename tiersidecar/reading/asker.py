"""Who asks for the read that runs now: a principal, a user, or an address.

A context variable, since the turns are taken many calls below the gateway and the read service, in tasks that several of
these may have begun: what runs for two callers counts for the one that began it.
"""

from __future__ import annotations

from contextvars import ContextVar

ASKER: ContextVar[str] = ContextVar("asker", default="")
"""Set by whatever serves a caller; empty for the daemon's own reads."""
