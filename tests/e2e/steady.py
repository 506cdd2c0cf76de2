"""A worker that trains nothing. It records repeatedly that it is alive in its round, until the file ``finish`` exists.

From its notes a test judges exclusivity and consistency: they show what workers did, not what a state says. They are in
the run's directory or in the given one. With ``chatty`` it also prints a line for each note.
"""

import json
import os
import sys
import time
from pathlib import Path

DIRECTORY = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["HPCELASTIC_RUN_DIR"])
NAMES = ("HPCELASTIC_ROUND", "RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def main() -> None:
    proof = DIRECTORY / "proof"
    proof.mkdir(exist_ok=True)
    facts = {name: os.environ[name] for name in NAMES}
    note = proof / f"{facts['HPCELASTIC_ROUND']}.{facts['RANK']}.{os.getpid()}.json"
    start = time.monotonic()
    while True:
        draft = note.with_suffix(".draft")
        draft.write_text(json.dumps({**facts, "start": start, "end": time.monotonic()}))
        draft.rename(note)
        if "chatty" in sys.argv:
            print(f"rank {facts['RANK']} is well", flush=True)
        if (DIRECTORY / "finish").exists():
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
