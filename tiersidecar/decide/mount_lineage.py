"""From which clusters a bucket's data came to which: a lineage is a cluster, and those whose data it took over, latest first.

The owner object of each topic id has one.  A mount that ended behind the claim, and is begun anew in a third cluster, so still
knows what the first one put into the bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

Lineage = tuple[str, ...]


def lineage_of(cluster_id: str, known: Iterable[Lineage]) -> Lineage:
    """Return the cluster, and those whose data it took over, by all lineages ``known``."""
    found = [cluster_id]
    for lineage in known:
        if cluster_id in lineage:
            found += [one for one in lineage[lineage.index(cluster_id) + 1 :] if one not in found]
    return tuple(found)


def latest_clusters(known: Collection[Lineage]) -> list[str]:
    """Return the owners whose data no other owner took over, ascending.  Of clusters that took over from each other, all."""
    owners = {lineage[0] for lineage in known}
    former = {one for lineage in known for one in lineage[1:]}
    return sorted(owners - former) or sorted(owners)
