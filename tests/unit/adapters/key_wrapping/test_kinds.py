"""Key services of other packages, found by their entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiersidecar.adapters.key_wrapping.aws_kms import AwsKmsKind
from tiersidecar.adapters.key_wrapping.kinds import load_wrapping_kind
from tiersidecar.domain.errors import ConfigError


def install(directory: Path, name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is importable and has an entry point of that name, as an installer leaves it."""
    (directory / f"{package}.py").write_text("class Kind:\n    brought_by = __name__\n\nkind = Kind()\n")
    info = directory / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tiersidecar.key_wrapping]\n{name} = {package}:kind\n")
    monkeypatch.syspath_prepend(str(directory))


def test_a_package_brings_a_key_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "vault", "vault_keys", monkeypatch)
    assert getattr(load_wrapping_kind("vault"), "brought_by", None) == "vault_keys"


def test_the_built_in_one_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "aws-kms", "other_kms", monkeypatch)
    assert isinstance(load_wrapping_kind("aws-kms"), AwsKmsKind)


def test_two_packages_with_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "vault", "vault_keys_one", monkeypatch)
    install(tmp_path, "vault", "vault_keys_two", monkeypatch)
    with pytest.raises(ConfigError, match="several packages bring it"):
        load_wrapping_kind("vault")


def test_one_that_cannot_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "vault", "vault_broken", monkeypatch)
    (tmp_path / "vault_broken.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(ConfigError, match="vault_broken:kind cannot be loaded: No module named"):
        load_wrapping_kind("vault")
