"""Both cores, for tests that hold them together.  ``make test-native`` runs them; without a native core they fail."""

from __future__ import annotations

import pytest

from tiersidecar.formats import native
from tiersidecar.formats.native import NativeCore

PYTHON = NativeCore(walks=None, reason="this test wants it")


@pytest.fixture(scope="session", autouse=True)
def _there_is_a_native_core() -> None:
    assert native.core.walks is not None, f"make native builds it: {native.core}"
