"""What Google Cloud Storage answers, as errors that say what to do."""

from __future__ import annotations

import json

import pytest

from tiersidecar.adapters.stores.gcs_errors import gcs_error
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError


def said(message: str) -> bytes:
    return json.dumps({"error": {"code": 0, "message": message, "errors": []}}).encode()


@pytest.mark.parametrize(
    ("verb", "status", "body", "kind", "part"),
    [
        pytest.param("fetch", 404, said("No such object: b/k"), ObjectNotFoundError, "no such object", id="no object"),
        pytest.param(
            "fetch", 404, said("The specified bucket does not exist."), StoreError, "gcs.bucket.name", id="no bucket"
        ),
        pytest.param("delete", 404, b"Not Found", ObjectNotFoundError, "no such object", id="deleted already"),
        pytest.param("fetch", 404, b"No such object: b/k", ObjectNotFoundError, "no such object", id="no content"),
        pytest.param(
            "head", 404, b'{"error": {"message": "x", "errors": [{"reason": "notFound"}]}}', ObjectNotFoundError,
            "no such object", id="the service's word for it",
        ),
        pytest.param("delete", 404, b"<html>nginx: Not Found</html>", StoreError, "no proxy in the way", id="a page"),
        pytest.param("head", 404, b"", StoreError, "no proxy in the way", id="nothing but the number"),
        pytest.param("fetch", 404, b'{"error": "no route"}', StoreError, "404: no route", id="another service's word"),
        pytest.param("put", 404, b"", StoreError, "create the bucket", id="a put into no bucket"),
        pytest.param("list", 404, said("Not Found"), StoreError, "create the bucket", id="a listing of no bucket"),
        pytest.param("delete", 412, said("conditionNotMet"), StoreError, "412", id="a condition of a delete"),
        pytest.param(
            "put", 403, said("x@y does not have storage.objects.create access"), StoreError,
            "Storage Object User", id="no right to write",
        ),
        pytest.param("list", 403, b"", StoreError, "storage.objects.list", id="no right to list, and no sentence"),
        pytest.param(
            "delete", 403, said("Object is under active Retention policy"), StoreError, "retention policy", id="retention"
        ),
        pytest.param("head", 401, b"<html><body>", StoreError, "credentials were refused", id="a page instead of JSON"),
        pytest.param("put", 429, said("rateLimitExceeded"), StoreError, "limit of requests", id="too many requests"),
        pytest.param("put", 500, said("a\nb"), StoreError, "500: a b", id="a sentence of two lines"),
        pytest.param("put", 400, b"[1]", StoreError, "400: [1]", id="JSON that is none of the service's"),
        pytest.param(
            "fetch", 503, b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>less</Message></Error>", StoreError,
            "503: SlowDown: less", id="XML",
        ),
    ],
)  # fmt: skip
def test_an_answer_becomes_an_error(verb: str, status: int, body: bytes, kind: type[StoreError], part: str) -> None:
    error = gcs_error(verb, "t/0/a.log", status, body)
    assert type(error) is kind
    assert part in str(error)
    assert "\n" not in str(error)


def because(reason: str) -> bytes:
    return json.dumps({"error": {"code": 412, "message": "so it is", "errors": [{"reason": reason}]}}).encode()


@pytest.mark.parametrize(
    ("is_conditional", "body", "kind"),
    [
        pytest.param(True, because("conditionNotMet"), ObjectExistsError, id="a key that is taken"),
        pytest.param(True, b"", ObjectExistsError, id="a key that is taken, told without a document"),
        pytest.param(True, because("orgPolicyConstraintFailed"), StoreError, id="a constraint of the organization"),
        pytest.param(True, said("so it is"), StoreError, id="a document without a reason"),
        pytest.param(False, because("conditionNotMet"), StoreError, id="a put without a condition"),
        pytest.param(False, b"", StoreError, id="a put without a condition, told without a document"),
    ],
)
def test_only_the_condition_of_a_put_says_that_a_key_is_taken(
    is_conditional: bool, body: bytes, kind: type[StoreError]
) -> None:
    error = gcs_error("put", "t/0/a.log", 412, body, is_conditional=is_conditional)
    assert type(error) is kind
    assert kind is ObjectExistsError or error.reason.startswith("412")
