"""The alert rules by promtool: what each fires on, what it does not, and the text that it shows then (S-309)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prometheus import promtool

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(900),
]  # where there is no Debian, promtool is built the first time

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


def test_the_rules_are_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", DEPLOY / "tiersidecar.rules.yaml")


def test_each_alert_fires_when_it_should_and_not_otherwise() -> None:
    assert "SUCCESS" in promtool("test", "rules", DEPLOY / "tiersidecar.rules.test.yaml")
