"""What a put into Google Cloud Storage believes, and what it removes, when its answer is not what it should be.

The service is a few lines of HTTP: no server gives these answers when it is asked to.
"""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from tests.support.scripted_gcs import description, refusal, scripted_gcs_store
from tiersidecar.domain.errors import ObjectExistsError, StoreError
from tiersidecar.ports.store import BytesBody

OLD, NEW = b"the old manifest", b"the new manifest, which is longer"


async def test_a_constraint_that_forbids_a_put_is_no_success() -> None:
    """S-194: what is there is older, and was not overwritten."""

    def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return refusal(412, "Request violates constraint 'restrictNonCmekServices'", "orgPolicyConstraintFailed")
        return web.Response(body=description("k", OLD))

    async with scripted_gcs_store(answer) as (store, service):
        for if_absent in (False, True):
            with pytest.raises(StoreError, match="412: Request violates constraint") as raised:
                await store.put_object("k", BytesBody(NEW), if_absent=if_absent)
            assert not isinstance(raised.value, ObjectExistsError)
    assert service.methods == ["POST", "POST"]
