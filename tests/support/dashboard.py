"""Grafana's dashboard: what its panels ask of Prometheus, with the variables filled in as "All"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "tiersidecar.json"
ALL = {"job": "tiersidecar", "instance": ".*", "topic": ".*", "__rate_interval": "1m"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    panel: str
    expression: str
    labels_shown: frozenset[str]
    """Those that the legend names."""

    @property
    def filled_in(self) -> str:
        return re.sub(r"\$(\w+)", lambda found: ALL[found[1]], self.expression)


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def panel_queries() -> list[PanelQuery]:
    """Return each query of each panel, rows apart."""
    return [
        PanelQuery(
            panel=panel["title"],
            expression=target["expr"],
            labels_shown=frozenset(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])),
        )
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def variable_queries() -> Iterator[str]:
    """Yield the selectors whose label values the variables offer."""
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"]["query"])
            assert found, variable["query"]
            yield re.sub(r"\$(\w+)", lambda name: ALL[name[1]], found[1])
