"""Jobs that start and end quickly."""

from typing import Any

QUICK: dict[str, Any] = {
    "workers": {"per_node": 1, "stop_grace": 1},
    "rendezvous": {"last_call": 1, "lease": 2, "margin": 0.5, "poll": 0.05},
    "restarts": {"max": 0},
}

KEYWORDS = {f"{group}__{key}": value for group, keys in QUICK.items() for key, value in keys.items()}
"""The same job as keyword arguments of `submit`."""

WAITS = """\
import os, pathlib, time
print("hello from rank", os.environ["RANK"], flush=True)
while not pathlib.Path("finish").exists():
    time.sleep(0.02)
"""


def job(name: str = "r", script: str = "train.py", **more: Any) -> dict[str, Any]:
    return {"run": {"name": name}, "entrypoint": {"script": script}, **QUICK, **more}
