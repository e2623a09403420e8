"""Commands look again after the operator's answer, which may take hours (U10)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.commands import carry_out, session
from tiersidecar.app.commands.carry_out import DONE, MUST_ACT, Intent, Manner
from tiersidecar.app.commands.complaints import FAILED
from tiersidecar.domain.errors import MetadataNotReadyError

STEPS = ("broker: retention.ms of the topic becomes 1",)


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """A command without a broker; its answers are yes."""

    @asynccontextmanager
    async def nobody(config: Any, *, with_metadata: bool) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr(session, "open_session", nobody)
    monkeypatch.setattr(typer, "confirm", lambda *args, **kwargs: True)
    return StringIO()


@pytest.mark.parametrize(
    ("later", "yes", "looks", "code", "words"),
    [
        pytest.param(Intent(facts={}, steps=STEPS), False, 2, DONE, "done", id="nothing has changed: it is done"),
        pytest.param(Intent(facts={}, steps=STEPS), True, 1, DONE, "done", id="--yes waits for nobody: one look"),
        pytest.param(
            Intent(facts={}, steps=STEPS, refusal="offsets [7, 9) are not remote"),
            False,
            2,
            FAILED,
            "offsets [7, 9) are not remote",
            id="the copy fell behind meanwhile: refused",
        ),
        pytest.param(
            Intent(facts={}, steps=("broker: retention.ms of the topic becomes 2",)),
            False,
            2,
            FAILED,
            "have changed since they were shown",
            id="somebody else changed the topic meanwhile: refused",
        ),
    ],
)
async def test_what_holds_at_the_moment_of_doing_counts(
    console: StringIO, tmp_path: Path, later: Intent, yes: bool, looks: int, code: int, words: str
) -> None:
    seen, applied = list[Intent](), list[str]()

    async def apply() -> None:
        applied.append("it")

    async def look(session: object) -> Intent:
        intent = Intent(facts={}, steps=STEPS, apply=apply) if not seen else later
        seen.append(intent)
        return Intent(facts={}, steps=intent.steps, refusal=intent.refusal, apply=apply)

    manner = Manner(config_file=tmp_path, yes=yes, dry_run=False, as_json=False, console=Console(file=console))
    found = await carry_out._carry_out(load(tmp_path, LEAST), look, manner, with_metadata=False)
    assert (found, len(seen), bool(applied)) == (code, looks, code == DONE)
    assert words in console.getvalue()


@pytest.mark.parametrize(
    ("intent", "dry_run", "code"),
    [
        pytest.param(
            Intent(facts={}, complete=False), False, MUST_ACT, id="nothing can be done, and something is left"
        ),
        pytest.param(Intent(facts={}, complete=True), False, DONE, id="nothing is left"),
        pytest.param(Intent(facts={}), False, DONE, id="the command does not say"),
        pytest.param(Intent(facts={}, complete=False), True, DONE, id="it was only to be shown"),
        pytest.param(Intent(facts={}, complete=False, refusal="no"), False, FAILED, id="refused"),
    ],
)
async def test_without_steps_the_exit_code_says_whether_anything_is_left(
    console: StringIO, tmp_path: Path, intent: Intent, dry_run: bool, code: int
) -> None:
    async def look(session: Any) -> Intent:
        return intent

    manner = Manner(
        config_file=tmp_path, yes=not dry_run, dry_run=dry_run, as_json=False, console=Console(file=console)
    )
    assert await carry_out._carry_out(load(tmp_path, LEAST), look, manner, with_metadata=True) == code


def test_a_command_that_fails_prints_a_json_document_too(
    console: StringIO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def look(session: Any) -> Intent:
        raise MetadataNotReadyError(subject="the topic")

    (config := tmp_path / "tiersidecar.yaml").write_text(LEAST)
    manner = Manner(config_file=config, yes=True, dry_run=False, as_json=True, console=Console(file=console))
    with pytest.raises(typer.Exit) as ended:
        carry_out.carry_out(look, manner)
    said = json.loads(capsys.readouterr().out)
    assert (ended.value.exit_code, said["done"]) == (FAILED, False)
    assert said["error"] == str(MetadataNotReadyError(subject="the topic"))
    assert f"error: {said['error'].splitlines()[0]}" in console.getvalue().replace("\n", " ")
