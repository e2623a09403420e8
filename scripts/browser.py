"""Bring a browser, and the library that finds what in a page keeps people out, into the user's cache, once.

Chromium is Debian's, unpacked beside nothing else, with those of its libraries that this machine lacks: no root is needed, and
nothing is installed.  Where there is no apt, a browser on PATH does.  axe-core comes from npm's registry, by its sum.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from scripts.debian_package import unpack_debian_with_needs  # noqa: E402
from tests.support.build_cache import MissingProgramError, build_once, require_program  # noqa: E402

AXE_VERSION = "4.14.1"
_AXE_INTEGRITY = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
_AXE_TIMEOUT_S = 120
_OTHERS = ("chromium", "chromium-browser", "google-chrome")
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <dir prefix="relative">usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """A program, and what has to be in its environment."""

    path: Path
    environment: dict[str, str]


def bring_browser() -> Browser:
    """Return the browser, which takes a minute the first time.

    Raises:
        MissingProgramError: it cannot be had, and none is installed.
    """
    try:
        root = build_once("debian-chromium", _unpack_chromium)
    except (MissingProgramError, RuntimeError) as error:
        for name in _OTHERS:
            if (path := shutil.which(name)) is not None:
                return Browser(path=Path(path), environment={})
        raise MissingProgramError(
            f"no browser: apt install chromium (Debian), dnf install chromium (RPM); {error}"
        ) from error
    libraries = sorted({str(one.parent) for one in root.glob("usr/lib/**/*.so*")})
    return Browser(
        path=root / "usr" / "lib" / "chromium" / "chromium",
        environment={"LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(root / "fonts.conf")},
    )


def bring_axe() -> Path:
    """Return the path of axe-core's script.

    Raises:
        MissingProgramError: npm is needed and not there.
        RuntimeError: npm could not have it, or it is another one than it was.
    """
    return build_once(f"axe-core-{AXE_VERSION}", _fetch_axe) / "package" / "axe.min.js"


def _unpack_chromium(directory: Path) -> None:
    unpack_debian_with_needs(["chromium", "fonts-dejavu-core"], directory)
    (directory / "fonts.conf").write_text(_FONTS)


def _fetch_axe(directory: Path) -> None:
    npm = require_program("npm", debian="npm", rpm="npm")
    command = [npm, "pack", f"axe-core@{AXE_VERSION}", "--pack-destination", str(directory), "--silent"]
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_AXE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"npm pack axe-core: not within {_AXE_TIMEOUT_S} s") from late
    archive = directory / f"axe-core-{AXE_VERSION}.tgz"
    if done.returncode != 0 or not archive.is_file():
        raise RuntimeError(f"npm pack axe-core: {done.stderr[-500:]}")
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != _AXE_INTEGRITY:
        raise RuntimeError(f"axe-core {AXE_VERSION} is {found}, must be {_AXE_INTEGRITY}")
    with tarfile.open(archive) as packed:
        packed.extract("package/axe.min.js", directory, filter="data")
    archive.unlink()
