"""The page's one style sheet and its one script.  The policy names both by their hashes, and lets in nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

_HERE = files("tiersidecar.services.status.page")
STYLE = _HERE.joinpath("page.css").read_text("utf-8")
SCRIPT = _HERE.joinpath("page.js").read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of every page."""
