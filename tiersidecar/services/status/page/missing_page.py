"""What was asked for is not there, or not known."""

from __future__ import annotations

from tiersidecar.domain.readable import cut_text
from tiersidecar.services.status.cluster import Cluster
from tiersidecar.services.status.page.frame import whole_page
from tiersidecar.services.status.page.markup import join, tag

_MOST = 200


def missing_page(cluster: Cluster, what: str) -> str:
    """The document."""
    silent = [f"broker {sidecar.node_id}" for sidecar in cluster.sidecars if sidecar.overview is None]
    unknown = f" {', '.join(silent)} did not answer, and may know it." if silent else ""
    body = join(
        tag("h1", f"No {cut_text(what, _MOST)} is known here"),
        tag(
            "p",
            f"No sidecar that answers has it: it is not tiered, is gone, or its leader's sidecar did not tell.{unknown}",
        ),
        tag("p", tag("a", "Back to the cluster", href=".")),
    )
    return whole_page(title="Not known", where="", crumbs=(("Cluster", "."),), body=body, asked_ms=cluster.asked_ms)
