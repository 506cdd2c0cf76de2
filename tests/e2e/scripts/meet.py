"""A worker that meets the others at MASTER_ADDR and MASTER_PORT, as torch does; in round 1, rank 1 crashes then."""

import json
import os
import socket
import sys
import time
from pathlib import Path

NAMES = ("RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "HPCELASTIC_ROUND")


def connect(address: tuple[str, int]) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(address).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"nobody listens at {address}"
            time.sleep(0.02)


rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(address) as server:
        for _ in range(1, world_size):
            server.accept()[0].close()
else:
    connect(address)
note = {name: os.environ[name] for name in NAMES}
Path(sys.argv[1], f"{note['HPCELASTIC_ROUND']}.{rank}.json").write_text(json.dumps(note))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(0 if rank == 1 else 60)
    sys.exit(7)
