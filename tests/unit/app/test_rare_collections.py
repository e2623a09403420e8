"""The cycle collector while a command holds a whole bucket."""

from __future__ import annotations

import gc
from contextlib import suppress

from tiersidecar.app.rare_collections import rare_collections


def test_collections_are_rarer_for_as_long_as_the_body_runs() -> None:
    before = gc.get_threshold()
    with rare_collections():
        during = gc.get_threshold()
    assert all(rare >= usual for rare, usual in zip(during, before, strict=True))
    assert during[0] > 10 * before[0]
    assert gc.isenabled()
    assert gc.get_threshold() == before


def test_and_no_longer_where_it_fails() -> None:
    before = gc.get_threshold()
    with suppress(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == before
