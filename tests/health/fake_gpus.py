"""The GPUs of a node, as a program in place of nvidia-smi reports them."""

import os
from pathlib import Path

SOUND = """\
0, GPU-6a3c9f1e-0d5b-4c1f-9f8e-2b7d4e5a6c01, 00000000:1B:00.0, 0, No
1, GPU-0f2e8d7c-6b5a-4938-8271-60f5e4d3c2b1, 00000000:43:00.0, 0, No
"""
"""The output of nvidia-smi for two GPUs without faults, with the requested fields."""

ECC = SOUND.replace("43:00.0, 0, No", "43:00.0, 3, No")


def nvidia_smi(directory: Path, says: str, script: str = "") -> dict[str, str]:
    """Return an environment with two GPUs and with a nvidia-smi in PATH that runs ``script`` and prints ``says``."""
    directory.mkdir(exist_ok=True)
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\ncat <<'END'\n{says}END\n")
    program.chmod(0o755)
    path = f"{directory}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": "0,1"}
