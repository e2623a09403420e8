"""What readers are told of a store that does not deliver: which one, and no more than they may know (S-293)."""

from __future__ import annotations

import pytest

from tiersidecar.domain.errors import ObjectNotFoundError, StoreError, StoreStalledError, UnknownPlaceError
from tiersidecar.services.reader.problems import problem_of

SECRET = "s3://bucket at host:1"
KEY = "orders-id/0/1.log"


@pytest.mark.parametrize(
    ("error", "name", "detail"),
    [
        pytest.param(
            StoreError(verb="fetch", key=f"@cold/{KEY}", reason=SECRET, is_away=True),
            "store-unavailable",
            "the object store of the place cold is away",
            id="a place is down",
        ),
        pytest.param(
            StoreStalledError(verb="fetch", key=f"@cold/{KEY}", reason=SECRET),
            "store-unavailable",
            "the object store of the place cold is away",
            id="a place does not answer",
        ),
        pytest.param(
            ObjectNotFoundError(verb="fetch", key=f"@cold/{KEY}", reason=SECRET),
            "store-unavailable",
            "the object store of the place cold did not deliver",
            id="an object of a place is missing",
        ),
        pytest.param(
            UnknownPlaceError(verb="fetch", key=f"@gone/{KEY}", place="gone"),
            "place-unknown",
            "this is in the place gone, which the service's configuration does not name",
            id="a place that was taken out of the configuration",
        ),
        pytest.param(
            StoreError(verb="fetch", key=KEY, reason=SECRET, is_away=True),
            "store-unavailable",
            "the object store did not deliver",
            id="the default place",
        ),
    ],
)
def test_readers_are_told_which_store(error: StoreError, name: str, detail: str) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.name, problem.detail) == (503, name, detail)
    assert "Retry-After" in problem.headers
