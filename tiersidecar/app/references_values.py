"""How the generated references write a key's meaning and its default."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from tiersidecar.app.config.keys import quantity_of
from tiersidecar.app.config.values import LONG_MAX
from tiersidecar.app.config.without_effect import WITHOUT_EFFECT

GENERATED = "Generated from the code by `python -m tiersidecar.app.references`: change it there."


def default_of(field: FieldInfo) -> Any:
    """The default, of a key that is not required."""
    return field.get_default(call_default_factory=True, validated_data={})


def written(field: FieldInfo, default: Any) -> str:
    """``default`` as YAML has it, with a unit where the key takes one."""
    quantity = quantity_of(field)
    match default:
        case bool():
            return "true" if default else "false"
        case int() if quantity is not None:
            return str(default) if default == LONG_MAX else quantity.format(default)
        case tuple():
            return "[]"
        case dict():
            return "{}"
        case "":
            return '""'
        case _:
            return str(default)


def sentence_of(key: str, field: FieldInfo) -> str:
    """The key's documentation on one line, and whether it does anything yet."""
    why = next((why for path, why in WITHOUT_EFFECT.items() if path[-1] == key), None)
    note = "" if why is None else f" (Without effect in this release: {why}.)"
    return " ".join((field.description or "").split()) + note
