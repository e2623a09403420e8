"""Sizes, durations, addresses and secrets as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from tiersidecar.app.config.values import LONG_MAX, Address, Addresses, Quantity, Secret, shown

Kind = Literal["size", "duration_ms", "duration_s", "percent"]


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        pytest.param("size", 4194304, 4194304, id="a plain number is bytes"),
        pytest.param("size", "4194304", 4194304, id="a plain number in quotes is bytes"),
        pytest.param("size", "64MiB", 64 * 1024**2, id="MiB is a power of two"),
        pytest.param("size", "64MB", 64_000_000, id="MB is a power of ten"),
        pytest.param("size", "1.5GiB", 1536 * 1024**2, id="a fraction that gives whole bytes"),
        pytest.param("size", " 1 TiB ", 1024**4, id="spaces do no harm"),
        pytest.param("size", "10gi", 10 * 1024**3, id="Kubernetes' short form, in any case"),
        pytest.param("duration_ms", 30000, 30000, id="a plain number is milliseconds, as in Kafka"),
        pytest.param("duration_ms", "30s", 30_000, id="seconds"),
        pytest.param("duration_ms", "500ms", 500, id="milliseconds"),
        pytest.param("duration_ms", "2m", 120_000, id="m is minutes"),
        pytest.param("duration_ms", "7d", 604_800_000, id="days"),
        pytest.param("duration_s", 1, 1, id="a plain number of a seconds key is seconds"),
        pytest.param("duration_s", "2min", 120, id="minutes in seconds"),
        pytest.param("duration_s", "3000ms", 3, id="milliseconds that are whole seconds"),
        pytest.param("percent", "10%", 10, id="a share"),
        pytest.param("percent", 10, 10, id="a plain number is percent"),
    ],
)
def test_a_quantity_is_read(kind: Kind, text: object, number: int) -> None:
    assert Quantity(kind).parse(text) == number


@pytest.mark.parametrize(
    ("quantity", "text", "message"),
    [
        pytest.param(Quantity("size"), "lots", "expected a size such as 64MiB, got 'lots'", id="a word"),
        pytest.param(Quantity("size"), True, "expected a size such as 64MiB, got true", id="a boolean is not 1"),
        pytest.param(Quantity("size"), None, "expected a size such as 64MiB, got nothing", id="nothing"),
        pytest.param(Quantity("size"), [1], "expected a size such as 64MiB, got a list", id="a list"),
        pytest.param(Quantity("size"), "1.5b", "expected a size such as 64MiB, got '1.5b'", id="half a byte"),
        pytest.param(Quantity("size"), "7d", "expected a size such as 64MiB, got '7d'", id="a duration for a size"),
        pytest.param(
            Quantity("duration_ms"), "7MiB", "expected a duration such as 30s, got '7MiB'", id="a size for a duration"
        ),
        pytest.param(
            Quantity("duration_s"), "500ms", "expected a duration such as 30s, got '500ms'", id="half a second"
        ),
        pytest.param(
            Quantity("duration_ms", at_least=-2),
            "-2d",
            "expected a duration such as 30s or -2, got '-2d'",
            id="-2 takes no unit",
        ),
        pytest.param(Quantity("size"), -1, "must be at least 0, got -1", id="negative where nothing is special"),
        pytest.param(
            Quantity("size", at_least=5 * 1024**2), "1MiB", "must be at least 5MiB, got '1MiB'", id="too small"
        ),
        pytest.param(
            Quantity("percent"), "10GiB", "expected a share such as 10%, got '10GiB'", id="a size for a share"
        ),
        pytest.param(Quantity("percent"), "0.5%", "expected a share such as 10%, got '0.5%'", id="half a percent"),
        pytest.param(Quantity("size"), "10%", "expected a size such as 64MiB, got '10%'", id="a share for a size"),
        pytest.param(Quantity("percent", at_most=100), "101%", "must be at most 100%, got '101%'", id="more than all"),
        pytest.param(Quantity("size", at_most=1024), "2KiB", "must be at most 1KiB, got '2KiB'", id="too large"),
    ],
)
def test_what_is_no_quantity_is_told(quantity: Quantity, text: object, message: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        quantity.parse(text)
    assert caught.value.message() == message


@given(st.sampled_from(["size", "duration_ms", "duration_s"]), st.integers(min_value=-2, max_value=LONG_MAX))
def test_a_formatted_quantity_reads_back_the_same(kind: Kind, number: int) -> None:
    quantity = Quantity(kind, at_least=-2)
    assert quantity.parse(quantity.format(number)) == number


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        ("size", 4 * 1024**2, "4MiB"),
        ("size", 1000, "1000"),
        ("duration_ms", 30_000, "30s"),
        ("duration_ms", 604_800_000, "7d"),
        ("duration_ms", 500, "500ms"),
        ("duration_s", 1, "1s"),
        ("size", LONG_MAX, str(LONG_MAX)),
        ("size", -1, "-1"),
        ("duration_ms", 0, "0"),
        ("percent", 10, "10%"),
    ],
)
def test_a_quantity_is_formatted_shortly(kind: Kind, number: int, text: str) -> None:
    assert Quantity(kind, at_least=-2).format(number) == text


class _Holder(BaseModel):
    servers: Addresses = ()
    secret: Secret | None = None


@pytest.mark.parametrize(
    ("written", "addresses"),
    [
        pytest.param("a:1,b:2", (Address("a", 1), Address("b", 2)), id="Kafka's comma-separated text"),
        pytest.param(["a:1", "b:2"], (Address("a", 1), Address("b", 2)), id="a list"),
        pytest.param("[::1]:9092", (Address("::1", 9092),), id="IPv6 in brackets"),
    ],
)
def test_addresses_are_read(written: object, addresses: tuple[Address, ...]) -> None:
    assert _Holder.model_validate({"servers": written}).servers == addresses


@pytest.mark.parametrize(
    "written", ["localhost", "host:", ":9092", "host:70000", "a b:1", "::1:9092", "PLAINTEXT://h:1", 9092]
)
def test_what_is_no_address_is_refused(written: object) -> None:
    with pytest.raises(PydanticCustomError, match="expected host:port"):
        Address.parse(written)


@pytest.mark.parametrize("text", ["127.0.0.1:8090", "[::1]:8090", "broker-1.example.com:9092"])
def test_an_address_prints_as_it_is_written(text: str) -> None:
    assert str(Address.parse(text)) == text


def test_only_loopback_addresses_are_loopback() -> None:
    assert [Address(host, 1).is_loopback for host in ("127.0.0.1", "127.8.8.8", "localhost", "::1")] == [True] * 4
    assert [Address(host, 1).is_loopback for host in ("0.0.0.0", "::", "10.0.0.1", "example.com")] == [False] * 4


def _secret(value: object, environ: dict[str, str] | None = None) -> str:
    held = _Holder.model_validate({"secret": value}, context={"environ": environ or {}}).secret
    assert held is not None
    assert "hunter2" not in repr(held)
    return held.get_secret_value()


def test_a_secret_comes_from_the_environment() -> None:
    assert _secret({"env": "PASSWORD"}, {"PASSWORD": "hunter2"}) == "hunter2"


def test_a_secret_file_loses_its_last_line_break_only(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" hunter2 \n")
    assert _secret({"file": str(file)}) == " hunter2 "


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param({"env": "ABSENT"}, "environment variable ABSENT is not set", id="variable not set"),
        pytest.param({"env": "EMPTY"}, "environment variable EMPTY is empty", id="variable empty"),
        pytest.param(
            {"file": "/no/such"}, "secret file /no/such cannot be read: no such file or directory", id="no file"
        ),
        pytest.param({"vault": "x"}, "expected a secret as {env: NAME}, {file: /path} or a text", id="another source"),
        pytest.param({"env": "A", "file": "/b"}, "expected a secret as {env: NAME}, {file: /path} or a text", id="two"),
        pytest.param(
            12345, "expected a secret as {env: NAME}, {file: /path} or a text", id="a number is not quoted back"
        ),
        pytest.param({"env": 5}, "env of a secret must be a text", id="a variable named by a number"),
    ],
)
def test_a_secret_that_cannot_be_had_is_told(value: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Holder.model_validate({"secret": value}, context={"environ": {"EMPTY": ""}})
    assert [error["msg"] for error in caught.value.errors()] == [message]


def test_long_and_nested_values_are_quoted_shortly() -> None:
    assert len(shown("x" * 1000)) < 70
    assert shown({"password": "hunter2"}) == "a section"
