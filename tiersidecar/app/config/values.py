"""The kinds of value that configuration keys take: sizes, durations, addresses, secrets.

Every kind parses what people write, says in one sentence what it expected when it cannot, and prints itself back in the
same form (``check-config``, the generated references).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, GetCoreSchemaHandler, SecretStr, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

LONG_MAX = 2**63 - 1
"""Java's ``Long.MAX_VALUE``: what Kafka writes where it means without limit."""

_SIZES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _SIZES |= {f"{_letter}ib": 1024**_power, f"{_letter}i": 1024**_power, f"{_letter}b": 1000**_power}
_DURATIONS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PERCENT = {"": 1, "%": 1}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*([A-Za-z]*|%)")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A whole number that may be written with a unit.

    ``kind`` says what a plain number counts: ``size`` bytes, ``duration_ms`` milliseconds, ``duration_s`` seconds, ``percent``
    hundredths.
    ``at_least`` and ``at_most`` are inclusive; negative values, where allowed, are Kafka's special ones and take no unit.
    """

    kind: Literal["size", "duration_ms", "duration_s", "percent"]
    at_least: int = 0
    at_most: int = LONG_MAX

    def parse(self, value: object) -> int:
        """Return the number that ``value`` stands for.

        Raises:
            PydanticCustomError: not such a quantity, or out of bounds.
        """
        number = self._number(value)
        if number is None:
            expected = {"expected": self.expected, "got": shown(value)}
            raise PydanticCustomError("quantity", "expected {expected}, got {got}", expected)
        if number < self.at_least:
            limit = {"limit": self.format(self.at_least), "got": shown(value)}
            raise PydanticCustomError("quantity", "must be at least {limit}, got {got}", limit)
        if number > self.at_most:
            limit = {"limit": self.format(self.at_most), "got": shown(value)}
            raise PydanticCustomError("quantity", "must be at most {limit}, got {got}", limit)
        return number

    def _number(self, value: object) -> int | None:
        if isinstance(value, bool):
            return None
        if isinstance(value, int):
            return value
        match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            return None
        digits, unit = match.group(1), match.group(2).lower()
        factor = self._factor(unit)
        if factor is None or (digits.startswith("-") and unit):
            return None
        number = Decimal(digits) * factor
        return int(number) if number == int(number) else None

    def _factor(self, unit: str) -> int | Decimal | None:
        if self.kind == "size":
            return _SIZES.get(unit)
        if self.kind == "percent":
            return _PERCENT.get(unit)
        if unit == "":
            return Decimal(1)
        factor = _DURATIONS.get(unit)
        if factor is None:
            return None
        return Decimal(factor) / (1000 if self.kind == "duration_s" else 1)

    @property
    def expected(self) -> str:
        """Return what to write, for messages."""
        what = {"size": "a size such as 64MiB", "percent": "a share such as 10%"}.get(
            self.kind, "a duration such as 30s"
        )
        return f"{what} or {self.at_least}" if self.at_least < 0 else what

    def format(self, number: int) -> str:
        """Return the shortest exact way to write ``number``: 4MiB, 30s, 7d; special and odd values as they are."""
        if self.kind == "percent":
            return f"{number}%"
        if number <= 0 or number == LONG_MAX:
            return str(number)
        if self.kind == "size":
            units = {f"{letter.upper()}iB": 1024**power for power, letter in enumerate("kmgtp", start=1)}
        else:
            scale = 1000 if self.kind == "duration_s" else 1
            units = {unit: _DURATIONS[unit] // scale for unit in ("s", "min", "h", "d") if _DURATIONS[unit] >= scale}
        for unit, factor in reversed(units.items()):
            if number % factor == 0:
                return f"{number // factor}{unit}"
        return f"{number}ms" if self.kind == "duration_ms" else str(number)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.parse, handler(source))


Size = Annotated[int, Quantity("size")]
PositiveSize = Annotated[int, Quantity("size", at_least=1)]
BytesPerSecond = Annotated[int, Quantity("size", at_least=1)]
RetentionBytes = Annotated[int, Quantity("size", at_least=-1)]
LocalRetentionBytes = Annotated[int, Quantity("size", at_least=-2)]
DurationMs = Annotated[int, Quantity("duration_ms")]
PositiveDurationMs = Annotated[int, Quantity("duration_ms", at_least=1)]
RetentionMs = Annotated[int, Quantity("duration_ms", at_least=-1)]
LocalRetentionMs = Annotated[int, Quantity("duration_ms", at_least=-2)]
DurationS = Annotated[int, Quantity("duration_s", at_least=1)]
Percent = Annotated[int, Quantity("percent", at_most=100)]


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """``host:port``; an IPv6 host is written in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")

    @classmethod
    def parse(cls, value: object) -> Address:
        """Return the address that ``value`` names.

        Raises:
            PydanticCustomError: no host, or no port between 0 and 65535 (0: one that the system picks).
        """
        if isinstance(value, Address):
            return value
        match = (
            re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/@]+)):(\d{1,5})", value)
            if isinstance(value, str)
            else None
        )
        if match is None or int(match.group(3)) > 65535:
            got = {"got": shown(value)}
            raise PydanticCustomError("address", "expected host:port such as 127.0.0.1:9092, got {got}", got)
        return cls(match.group(1) or match.group(2), int(match.group(3)))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )


def comma_separated(value: object) -> object:
    """Split a text with commas into a list; return anything else as it is."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


Addresses = Annotated[tuple[Address, ...], BeforeValidator(comma_separated)]
"""A list, or Kafka's comma-separated text."""


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise PydanticCustomError("path", "expected an absolute path, got {got}", {"got": shown(value)})
    if "\0" in value:
        raise PydanticCustomError("path", "a path cannot hold a NUL character", {})
    return os.path.normpath(value)


class AbsolutePath:
    """Marks a text as an absolute path; it is normalised."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(_absolute, handler(source))


FilePath = Annotated[str, AbsolutePath()]

SECRET_FORMS = "{env: NAME}, {file: /path} or a text"


def resolve_secret(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str | SecretStr):
        return value
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in {"env", "file"}:
        raise PydanticCustomError("secret", "expected a secret as {forms}", {"forms": SECRET_FORMS})
    ((source, name),) = value.items()
    if not isinstance(name, str) or not name:
        raise PydanticCustomError("secret", "{source} of a secret must be a text", {"source": source})
    environ = info.context["environ"] if info.context else os.environ
    return _from_environment(name, environ) if source == "env" else _from_file(name)


def _from_environment(name: str, environ: Mapping[str, str]) -> str:
    secret = environ.get(name)
    if not secret:
        state = "empty" if secret == "" else "not set"
        raise PydanticCustomError("secret", "environment variable {name} is {state}", {"name": name, "state": state})
    return secret


def _from_file(path: str) -> str:
    try:
        secret = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        details = {"path": path, "reason": (reason or type(error).__name__).lower()}
        raise PydanticCustomError("secret", "secret file {path} cannot be read: {reason}", details) from None
    if not secret:
        raise PydanticCustomError("secret", "secret file {path} is empty", {"path": path})
    return secret


Secret = Annotated[SecretStr, BeforeValidator(resolve_secret)]
"""Never shown: ``repr``, logs and ``check-config`` print asterisks.  A file's trailing line break is not part of it."""


def plain(secret: SecretStr | None) -> str | None:
    """Return its text, for what needs it; None where there is none."""
    return None if secret is None else secret.get_secret_value()


Resolved = Annotated[str, BeforeValidator(resolve_secret)]
"""A text that may come from where a secret does, but is none."""


def shown(value: object) -> str:
    """Return ``value`` as a message quotes it: short, and for sections and lists only what it is."""
    match value:
        case None:
            return "nothing"
        case Mapping():
            return "a section"
        case list() | tuple():
            return "a list"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= 60 else value[:57] + "...")
        case _:
            return str(value)
