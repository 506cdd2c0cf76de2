"""The wheel of the package."""

import subprocess
import sys
from pathlib import Path


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this checkout in an empty directory, and return its path."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(directory), str(Path(__file__).parents[1])]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = directory.glob("*.whl")
    return found
