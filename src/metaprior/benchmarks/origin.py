"""Where a measurement comes from: the machine, the version of the code, and the versions of what it was compared with."""

import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import jax

SOURCE = Path(__file__).parents[3]


@cache
def hardware() -> str:
    """Processor, cores, and the accelerator if there is one."""
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    device = jax.devices()[0]
    place = "" if device.platform == "cpu" else f"{device.device_kind}; host "
    return f"{place}{model}, {os.cpu_count()} cores; jax {jax.__version__}"


@cache
def commit() -> str:
    """The version of the code that measures, marked if files have changed since."""
    asked = os.environ.get("METAPRIOR_COMMIT")
    # An installed package may lie in an environment inside somebody else's repository, whose commit says nothing of ours.
    if asked or not (SOURCE / "src" / "metaprior").is_dir():
        return asked or "unknown"
    return commit_of(SOURCE)


def commit_of(folder: Path) -> str:
    """The last commit there, and `-dirty` if a file that git knows is another now; what measurements write does not count."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        last = git("rev-parse", "--short=10", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{last}-dirty" if changed else last


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Those of the packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
