"""Names of places, and what they make of keys (S-293)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.domain.places import PLACE_NAME, is_place_name, place_of, place_prefix

names = st.from_regex(PLACE_NAME, fullmatch=True)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        pytest.param("cold", True, id="a word"),
        pytest.param("eu-central-1", True, id="hyphens and digits"),
        pytest.param("a" * 32, True, id="as long as there is room for in custom metadata"),
        pytest.param("a" * 33, False, id="longer than that"),
        pytest.param("", False, id="nothing is the default place, and no name"),
        pytest.param("-cold", False, id="a hyphen first"),
        pytest.param("Cold", False, id="a capital"),
        pytest.param("a/b", False, id="a slash"),
        pytest.param("cold\n", False, id="a line's end"),
    ],
)
def test_names(name: str, is_one: bool) -> None:
    assert is_place_name(name) is is_one


@pytest.mark.parametrize(
    ("key", "place"),
    [
        pytest.param("@cold/topic-id/0/1.log", "cold", id="a key in a place"),
        pytest.param("cluster/topic-id/0/1.log", "", id="a key under a prefix"),
        pytest.param("cluster/@cold/topic-id/0/1.log", "", id="the mark further on"),
        pytest.param("@Cold/topic-id/0/1.log", "", id="what no place can be named"),
        pytest.param("@Cold/@cold/0/1.log", "", id="a place further on"),
        pytest.param("@cold", "", id="no key below it"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_a_key_tells_its_place(key: str, place: str) -> None:
    assert place_of(key) == place


@given(names, st.text(max_size=50))
def test_what_is_put_into_a_place_is_found_in_it(name: str, key: str) -> None:
    assert place_of(place_prefix(name) + key) == name


def test_the_default_place_changes_no_key() -> None:
    assert place_prefix("") == ""
