"""A study of the real images from the command line, where METAPRIOR_DATA says they are."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metaprior.data import omniglot

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("METAPRIOR_DATA") or "no data").absolute()
# What is kept of other runs stays out of it: a cell that is taken over takes no time.
PROGRAM = """
import sys
from pathlib import Path
from experiments import study
from metaprior.cli import main
study.ROOT = Path(sys.argv[1])
sys.exit(main(["reproduce", *sys.argv[2:]]))
"""


def reproduce(folder, *argv):
    """In a process of its own, compiled and in the precision that users have."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS" and "JAX_" not in name}
    environment |= {
        "JAX_PLATFORMS": os.environ["JAX_PLATFORMS"],
        "PYTHONPATH": os.pathsep.join([f"{ROOT}/src", f"{ROOT}"]),
    }
    command = [sys.executable, "-c", PROGRAM, str(folder), *argv, "--out", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not (FOLDER / omniglot.PACKED).is_file(), reason=f"METAPRIOR_DATA names no folder with {omniglot.PACKED}"
)
def test_omniglot_is_learned_in_three_minutes(tmp_path):
    """Of five unseen characters, shown once each; chance has 20 %. The time is that of a machine that does nothing else."""
    began = time.perf_counter()
    reproduce(tmp_path, "omniglot", "--setting", "5w1s", "--scale", "smoke", "--data-dir", str(FOLDER))
    seconds = time.perf_counter() - began
    rows = json.loads((tmp_path / "omniglot.json").read_text())["rows"]
    accuracies = [row["mean"] for row in rows if row["metric"] == "accuracy, paper"]
    assert len(accuracies) == 1 and accuracies[0] > 80, accuracies
    assert seconds < 180, f"{seconds:.0f} s"
