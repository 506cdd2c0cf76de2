"""A worker that connects to MASTER_ADDR and MASTER_PORT like torch. In round 1, rank 1 crashes afterwards."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

NAMES = ("RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "HPCELASTIC_ROUND")

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
store.set(f"here/{rank}", "")
store.wait([f"here/{other}" for other in range(world_size)])
note = {name: os.environ[name] for name in NAMES}
Path(sys.argv[1], f"{note['HPCELASTIC_ROUND']}.{rank}.json").write_text(json.dumps(note))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(0 if rank == 1 else 60)
    sys.exit(7)
