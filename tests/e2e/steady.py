"""A worker that trains nothing: it notes, over and over, that it is alive in its round, until told to finish.

Its notes are the proof by which a test judges exclusivity and consistency: what workers did, not what a state says.
"""

import json
import os
import time
from pathlib import Path

RUN = Path(os.environ["HPCELASTIC_RUN_DIR"])
NAMES = ("HPCELASTIC_ROUND", "RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def main() -> None:
    proof = RUN / "proof"
    proof.mkdir(exist_ok=True)
    facts = {name: os.environ[name] for name in NAMES}
    note = proof / f"{facts['HPCELASTIC_ROUND']}.{facts['RANK']}.{os.getpid()}.json"
    start = time.monotonic()
    while True:
        draft = note.with_suffix(".draft")
        draft.write_text(json.dumps({**facts, "start": start, "end": time.monotonic()}))
        draft.rename(note)
        if (RUN / "finish").exists():
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
