"""Who holds a lease, for readers of the whole log and for those that find it compacted (issue 16, finding 5).

The model writes the log as contenders do: a claim is of the term after the last that its writer has read, and may become
durable after another's; who has read back that it won renews; a former holder's renewal may come late.  Compaction takes any
record that a later one follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.domain.lease import Lease, accepted_lease


def lease(incarnation: int, term: int) -> Lease:
    return Lease(
        name="1",
        cluster_id="c",
        broker_id=1,
        incarnation=str(incarnation),
        term=term,
        host="h",
        pid=1,
        version="0",
        renewed_ms=0,
        duration_ms=60_000,
    )


def read(log: list[Lease], known: Lease | None = None) -> Lease | None:
    for written in log:
        known = accepted_lease(known, written)
    return known


@dataclass
class Writers:
    """The log, and how far each process had read it when it wrote last."""

    log: list[Lease] = field(default_factory=list)
    on_their_way: list[Lease] = field(default_factory=list)

    def claim(self, incarnation: int, unread: int) -> None:
        known = read(self.log[: max(len(self.log) - unread, 0)])
        self.log.append(lease(incarnation, 1 if known is None else known.term + 1))

    def renew(self) -> None:
        held = read(self.log)
        if held is not None and not held.released:  # who has given it back does not renew it
            self.log.append(replace(held, renewal=True))

    def renew_late(self, back: int) -> None:
        """By a process that has not read the last ``back`` records."""
        held = read(self.log[: max(len(self.log) - back, 0)])
        if held is not None and not held.released:
            self.log.append(replace(held, renewal=True))

    def release(self) -> None:
        """By the holder alone, who has read all: see ``tasks.tier_lease``, for what keeps a former one from it."""
        held = read(self.log)
        if held is not None and not held.released:
            self.log.append(replace(held, renewal=True, released=True))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("release"), st.just(0), st.just(0)),
        st.tuples(st.just("claim"), st.integers(1, 4), st.integers(0, 3)),
        st.tuples(st.just("renew"), st.just(0), st.just(0)),
        st.tuples(st.just("renew_late"), st.just(0), st.integers(1, 3)),
    ),
    max_size=30,
)


def written(steps: list[tuple[str, int, int]]) -> list[Lease]:
    writers = Writers()
    for count, (step, incarnation, amount) in enumerate(steps):
        match step:
            case "claim":
                writers.claim(incarnation * 100 + count, amount)  # a life of its own: no process claims twice
            case "renew":
                writers.renew()
            case "release":
                writers.release()
            case _:
                writers.renew_late(amount)
    return writers.log


@given(STEPS, st.data())
def test_a_compacted_log_names_the_same_holder_once_that_has_renewed(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    log = written(steps)
    holder = read(log)
    if holder is None:
        return
    log = [*log, replace(holder, renewal=True)]
    kept = [one for one in log[:-1] if data.draw(st.booleans(), label=f"{one.term} {one.incarnation} stays")]
    seen = read([*kept, log[-1]])
    assert seen is not None
    assert seen.holder == holder.holder


@given(STEPS)
def test_who_reads_a_compacted_log_never_takes_for_free_what_another_holds(steps: list[tuple[str, int, int]]) -> None:
    """Of one key compaction leaves the last record of what it cleaned, and all behind it."""
    log = written(steps)
    holder = read(log)
    for first in range(len(log)):
        seen = read(log[first:])
        assert seen is not None
        assert holder is not None
        assert holder.released or not seen.released


@given(STEPS, st.data())
def test_a_reader_that_comes_back_after_compaction_never_falls_behind_the_last_term(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    log = written(steps)
    if not log:
        return
    away = data.draw(st.integers(0, len(log) - 1))
    back = data.draw(st.integers(away, len(log) - 1))
    known = read([*log[:away], *log[back:]])
    assert known is not None
    assert known.term == max(one.term for one in (*log[:away], *log[back:]))


@given(STEPS)
def test_who_reads_all_knows_one_holder_a_term(steps: list[tuple[str, int, int]]) -> None:
    log, known = written(steps), None
    holders: dict[int, str] = {}
    for one in log:
        known = accepted_lease(known, one)
        assert holders.setdefault(known.term, known.incarnation) == known.incarnation
