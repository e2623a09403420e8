"""Print the bill of materials (CycloneDX 1.5) of what uv.lock says, the same for the same lock: ``scripts/sbom.py UV``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_EXPORT = ("export", "--frozen", "--no-dev", "--quiet", "--format", "cyclonedx1.5")


def sbom(uv: str) -> dict[str, Any]:
    """The libraries of the daemon, with the sums of their files; without Spark's, which are an extra.

    Time and serial number are left out: they would be a change where nothing changed.
    """
    shown = subprocess.run([uv, *_EXPORT], capture_output=True, text=True, check=True).stdout
    document: dict[str, Any] = json.loads(shown)
    del document["serialNumber"], document["metadata"]["timestamp"]
    return document


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: sbom.py UV", file=sys.stderr)
        return 2
    print(json.dumps(sbom(arguments[0]), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
