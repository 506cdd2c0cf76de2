"""Checks of the notes of `steady.py`."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def check_proof(run: Path) -> int:
    """Check that one round ran at a time, with one view of the world. Return the number of rounds that ran."""
    rounds: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for path in (run / "proof").glob("*.json"):
        note = json.loads(path.read_text())
        rounds[int(note["HPCELASTIC_ROUND"])].append(note)
    last_end = 0.0
    for number, notes in sorted(rounds.items()):
        begin = min(note["start"] for note in notes)
        assert begin > last_end, (
            f"round {number} began {last_end - begin:.3f} s before an earlier round's last worker ended"
        )
        last_end = max(note["end"] for note in notes)
        ranks = [note["RANK"] for note in notes]
        assert len(ranks) == len(set(ranks)), f"round {number}: a rank ran twice: {sorted(ranks)}"
        for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            assert len({note[name] for note in notes}) == 1, f"round {number}: {name} differs between ranks"
    return len(rounds)
