"""What a cluster of many brokers costs its sidecars, by formula: ``python -m benchmarks.support.cluster_model --brokers 1000``.

Each figure is printed with its formula, so that it can be done again with other numbers.  docs/scale.md explains them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, fields

DAY_S = 86_400
KIB, MIB, GIB = 1024, 1024**2, 1024**3
COPY_EVENT_BYTES = (120, 75)
"""Of started and finished, as the daemon writes them with one leader epoch and no custom metadata; deletes are two updates."""
RECORD_OVERHEAD_BYTES = 70
"""A batch of one record: its header (61 bytes) and the record's own fields.  Events of a sidecar are hardly ever together."""
SEGMENT_BYTES = 307
"""In memory (docs/costs-and-limits.md)."""
SKIPPED_PER_S = 1_500_000
"""Events that a core reads of partitions that are kept elsewhere (benchmarks/metadata.py)."""
LISTED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The inputs; the defaults are a cluster of 1,000 brokers."""

    brokers: int = 1_000
    leaders: int = 2_000
    """Tiered partitions that a broker leads."""
    replication: int = 3
    mib_per_s: float = 50.0
    """Into the leaders of one broker, as stored."""
    segment_mib: int = 512
    part_mib: int = 25
    days: int = 90
    """Total retention, with the delay in the trash."""
    metadata_partitions: int = 50
    snapshot_s: int = 300
    process_mib: int = 200
    """What a sidecar takes without metadata."""

    # -- the metadata topic

    @property
    def segments_per_s(self) -> float:
        return self.brokers * self.mib_per_s / self.segment_mib

    @property
    def records_per_day(self) -> float:
        """Two events for each copy, and two for each deletion, of which there are as many in the long run."""
        return 4 * self.segments_per_s * DAY_S

    @property
    def metadata_bytes_per_day(self) -> float:
        started, updated = COPY_EVENT_BYTES
        return (started + 3 * updated + 4 * RECORD_OVERHEAD_BYTES) * self.segments_per_s * DAY_S

    @property
    def followed_partitions(self) -> float:
        """Metadata partitions that a sidecar reads: those that its own partitions, led and followed, are hashed to."""
        return self.metadata_partitions * (1 - (1 - 1 / self.metadata_partitions) ** self.partitions_of_a_sidecar)

    @property
    def fetched_bytes_per_s(self) -> float:
        """By all sidecars together, from the brokers of the metadata topic."""
        share = self.followed_partitions / self.metadata_partitions
        return self.brokers * share * self.metadata_bytes_per_day / DAY_S

    @property
    def replay_s_per_year(self) -> float:
        """CPU seconds of a start without ``state.dir``, for each year that the topic goes back."""
        share = self.followed_partitions / self.metadata_partitions
        return share * 365 * self.records_per_day / SKIPPED_PER_S

    # -- a sidecar

    @property
    def partitions_of_a_sidecar(self) -> int:
        return self.leaders * self.replication

    @property
    def segments_of_a_sidecar(self) -> float:
        return self.replication * self.segments_per_s / self.brokers * DAY_S * self.days

    @property
    def memory_bytes(self) -> float:
        return self.process_mib * MIB + SEGMENT_BYTES * self.segments_of_a_sidecar

    # -- the store

    @property
    def puts_per_segment(self) -> float:
        """Parts, begin and complete where there is more than one, indexes and manifest."""
        parts = -(-self.segment_mib // self.part_mib)
        return (parts + 2 if parts > 1 else 1) + 2

    @property
    def puts_per_s(self) -> float:
        return self.segments_per_s * self.puts_per_segment

    @property
    def puts_per_s_of_a_partition(self) -> float:
        """Below the prefix of one partition, if all have as much."""
        return self.puts_per_s / (self.brokers * self.leaders)

    @property
    def snapshots_per_s(self) -> float:
        """Of partitions that have changed in an interval: a PUT, a DELETE and a GET each.  They cannot be more than there are,
        nor more than the segments."""
        return min(self.brokers * self.leaders / self.snapshot_s, self.segments_per_s)

    @property
    def objects(self) -> float:
        return 3 * self.segments_per_s * DAY_S * self.days

    @property
    def lists_of_reconcile(self) -> float:
        return self.objects / LISTED_AT_ONCE

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield what, how much, and by which formula."""
        yield "segments a second", f"{self.segments_per_s:,.1f}", "brokers · mib_per_s / segment_mib"
        yield "metadata records a day", f"{self.records_per_day / 1e6:,.1f} million", "4 · segments · 86,400"
        yield (
            "metadata bytes a day",
            f"{self.metadata_bytes_per_day / GIB:,.1f} GiB",
            "(120 + 3 · 75 + 4 · 70) · segments · 86,400, of each replica",
        )
        yield (
            "metadata partitions a sidecar reads",
            f"{self.followed_partitions:,.1f} of {self.metadata_partitions}",
            "M · (1 - (1 - 1/M) ^ (leaders · replication))",
        )
        yield (
            "metadata read by all sidecars",
            f"{self.fetched_bytes_per_s / MIB:,.1f} MiB/s",
            "brokers · share read · bytes a day / 86,400",
        )
        yield (
            "start without state.dir, a year back",
            f"{self.replay_s_per_year / 60:,.0f} min",
            "share read · 365 · records a day / 1.5 million",
        )
        yield (
            "segments a sidecar keeps",
            f"{self.segments_of_a_sidecar / 1e6:,.2f} million",
            "replication · segments / brokers · 86,400 · days",
        )
        yield "memory of a sidecar", f"{self.memory_bytes / MIB:,.0f} MiB", "process_mib + 307 · segments it keeps"
        yield (
            "PUTs a second",
            f"{self.puts_per_s:,.0f}",
            f"segments · {self.puts_per_segment:g} (parts + 2, indexes, manifest)",
        )
        yield (
            "PUTs a second below a partition's prefix",
            f"{self.puts_per_s_of_a_partition:.4f}",
            "PUTs / (brokers · leaders)",
        )
        yield (
            "snapshots a second (PUT, DELETE and GET each)",
            f"{self.snapshots_per_s:,.0f}",
            "min(brokers · leaders / snapshot_s, segments)",
        )
        yield "objects in the store", f"{self.objects / 1e9:,.2f} billion", "3 · segments · 86,400 · days"
        yield "LISTs of a reconcile", f"{self.lists_of_reconcile / 1e6:,.2f} million", "objects / 1,000"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for field in fields(Cluster):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    cluster = Cluster(**vars(parser.parse_args()))
    for what, value, formula in cluster.rows():
        print(f"{what:48}{value:>16}  {formula}")


if __name__ == "__main__":
    main()
