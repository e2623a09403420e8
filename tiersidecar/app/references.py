"""The references that are generated from the code: docs/configuration.md, docs/metrics.md, config/tiersidecar.yaml.

``python -m tiersidecar.app.references`` writes them below the current directory; a test checks that they are current.
"""

from __future__ import annotations

from pathlib import Path

from tiersidecar.app.references_table import configuration_reference, metrics_reference
from tiersidecar.app.references_yaml import annotated_configuration


def generated_files() -> dict[str, str]:
    """Text by path, relative to the project's root."""
    return {
        "docs/configuration.md": configuration_reference(),
        "docs/metrics.md": metrics_reference(),
        "config/tiersidecar.yaml": annotated_configuration(),
    }


def write_references(root: Path) -> None:
    """Write all generated files below ``root``."""
    for name, text in generated_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_references(Path.cwd())
