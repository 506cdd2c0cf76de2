"""The two implementations under test: torch's launch and hpcelastic's. Both get the same LaunchConfig."""

from pathlib import Path
from typing import Any

import torch.distributed.launcher.api as torchs

from hpcelastic.pytorch import launch as ours


class Side:
    """A launch with ``fields`` in a LaunchConfig. The defaults are one node and short times."""

    name = ""

    def __init__(self, directory: Path, **fields: Any) -> None:
        times = {"timeout": 60, "last_call_timeout": 1, **fields.pop("rdzv_configs", {})}
        given = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "run_id": "run", "max_restarts": 0, **fields}
        self.config = ours.LaunchConfig(rdzv_configs=times, **(self.place(directory) | given))

    def place(self, directory: Path) -> dict[str, str]:
        raise NotImplementedError

    def launch(self, entrypoint: Any, *args: Any) -> dict[int, Any]:
        raise NotImplementedError


class Torchs(Side):
    name = "torch"

    def place(self, directory: Path) -> dict[str, str]:
        return {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}

    def launch(self, entrypoint: Any, *args: Any) -> dict[int, Any]:
        return torchs.elastic_launch(self.config, entrypoint)(*args)


class Ours(Side):
    name = "hpcelastic"

    def place(self, directory: Path) -> dict[str, str]:
        return {"rdzv_endpoint": str(directory / "runs")}

    def launch(self, entrypoint: Any, *args: Any) -> dict[int, Any]:
        return ours.elastic_launch(self.config, entrypoint)(*args)


SIDES: dict[str, type[Side]] = {side.name: side for side in (Torchs, Ours)}
