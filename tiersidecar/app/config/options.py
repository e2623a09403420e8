"""Options that only a package knows: values that may be secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SecretStr, ValidationInfo

from tiersidecar.app.config.values import resolve_secret


def _resolved(value: Any, info: ValidationInfo) -> Any:
    """Resolve it: a mapping of one key, ``env`` or ``file``, is a secret."""
    if isinstance(value, Mapping) and set(value) in ({"env"}, {"file"}):
        return SecretStr(str(resolve_secret(value, info)))
    return value


Option = Annotated[Any, BeforeValidator(_resolved)]


def revealed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with secrets as texts, as the package takes them."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in options.items()
    }
