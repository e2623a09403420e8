"""A round of expiry that is not decided anew would have decided the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.expiry import HOUR_MS, NOW_MS, segment, view
from tiersidecar.decide.expire import decide_expiry, quiet_round
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView

AGES_H = st.floats(min_value=-2, max_value=30)
LIMITS = ExpiryLimits(max_share=0.5, idle_slack_ms=HOUR_MS)


@st.composite
def views(draw: st.DrawFn) -> ExpiryView:
    count = draw(st.integers(min_value=0, max_value=4))
    remote = tuple(
        segment(100 * n, 100 * n + 99, age_h=draw(AGES_H), copied_h=draw(AGES_H), uuid=bytes([n + 1]) * 16)
        for n in range(count)
    )
    return view(
        remote,
        retention_h=draw(st.sampled_from([None, 1, 5, 24])),
        retention_bytes=draw(st.sampled_from([-1, 1500, 10**6])),
        local=tuple(range(100 * count, 100 * count + 1 + 100 * draw(st.integers(0, 2)), 100)),
        local_age_h=draw(AGES_H),
        start=draw(st.sampled_from([0, 100])),
        limits=LIMITS,
    )


@given(views(), st.floats(min_value=0, max_value=1, exclude_max=True), st.integers(-10, 10))
def test_what_is_remembered_is_what_would_be_decided(looked: ExpiryView, part: float, beyond_ms: int) -> None:
    plan = decide_expiry(looked)
    quiet = quiet_round(looked, 7, plan)
    if quiet is None:
        return
    length_ms = quiet.until_ms - quiet.from_ms
    for now_ms in (quiet.from_ms + int(part * length_ms), quiet.until_ms - 1, quiet.until_ms + beyond_ms):
        later = replace(looked, now_ms=now_ms)
        if quiet.holds_for(replace(later, remote_segments=()), 7):
            assert decide_expiry(later) == plan


def test_it_is_decided_anew_from_the_moment_at_which_the_first_may_go() -> None:
    looked = view((segment(0, 99, age_h=1),), retention_h=1.01, local=(100,), start=0)
    quiet = quiet_round(looked, 7, decide_expiry(looked))
    assert quiet is not None
    assert quiet.until_ms == NOW_MS + HOUR_MS // 100
    bare = replace(looked, remote_segments=())
    assert quiet.holds_for(replace(bare, now_ms=quiet.until_ms - 1), 7)
    assert not quiet.holds_for(replace(bare, now_ms=quiet.until_ms), 7)
    assert decide_expiry(replace(looked, now_ms=quiet.until_ms)).expired
    assert not quiet.holds_for(replace(bare, now_ms=NOW_MS - 1), 7), "a clock that was set back"
    assert not quiet.holds_for(bare, 8), "other segments"
    assert not quiet.holds_for(replace(bare, policy=replace(bare.policy, retention_ms=HOUR_MS)), 7)
    assert not quiet.holds_for(replace(bare, hold="an operator holds it"), 7)
    assert not quiet.holds_for(replace(bare, local_segments=()), 7)
