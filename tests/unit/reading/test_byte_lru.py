"""A cache bounded by bytes (S-124)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tiersidecar.reading.remote_objects import ByteLru


def test_what_was_not_asked_for_longest_goes_first() -> None:
    cache: ByteLru[str, int] = ByteLru(30)
    for name in "abc":
        assert cache.put(name, ord(name), 10) == []
    assert cache.get("a") == ord("a")
    assert cache.put("d", ord("d"), 10) == [("b", ord("b"))]
    assert cache.keys() == ["c", "a", "d"]


def test_a_value_larger_than_the_whole_drives_out_nothing() -> None:
    cache: ByteLru[str, int] = ByteLru(30)
    cache.put("a", 1, 20)
    assert cache.put("b", 2, 31) == [("b", 2)]
    assert cache.keys() == ["a"]


def test_a_value_as_large_as_the_whole_is_kept() -> None:
    cache: ByteLru[str, int] = ByteLru(30)
    assert cache.put("a", 1, 30) == []
    assert cache.put("b", 2, 1) == [("a", 1)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12), st.booleans())), st.integers(0, 40))
def test_it_is_a_map_that_drops_no_more_than_its_bound_asks_for(steps: list[tuple[str, int, bool]], most: int) -> None:
    cache: ByteLru[str, int] = ByteLru(most)
    model: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for turn, (key, size, is_removal) in enumerate(steps):
        if is_removal:
            assert cache.discard(key) == model.pop(key, None)
            sizes.pop(key, None)
        else:
            model[key], sizes[key] = turn, size
            for dropped, value in cache.put(key, turn, size):
                assert sum(sizes.values()) > most, "nothing had to go"
                assert model.pop(dropped) == value
                del sizes[dropped]
        assert cache.size_bytes == sum(sizes.values()) <= most
        assert dict(zip(cache.keys(), map(cache.get, cache.keys()), strict=True)) == model
        assert len(cache) == len(model)
