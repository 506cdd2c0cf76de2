"""Train while a node dies and comes back: the program of `make demo`.

Three agents on this machine train on handwritten digits; each acts as a node. The program kills one node, agent and
workers, with SIGKILL, and the other two continue from memory, in the same processes. Then the node comes back, builds
its model beside the others, and three nodes finish the training. The run's directory is created in the directory that
is given as argument, or in ``runs``.
"""

import json
import shutil
import sys
import time
from pathlib import Path

from hpcelastic.api.jobs import LocalNodes
from hpcelastic.api.launch import resolve
from hpcelastic.api.prepare import prepare
from hpcelastic.api.run import Run, RunStatus
from hpcelastic.api.timeline import timeline

HERE = Path(__file__).parent
VICTIM = 0  # the first node; any node may die


def wait_for(run: Run, what: str, nodes: int, after_step: int, timeout: float = 120.0) -> int:
    """Wait until ``nodes`` nodes have trained beyond ``after_step``, and return the step that they have reached."""
    print(f"*** waiting: {what}", flush=True)
    deadline, printed = time.monotonic() + timeout, 0
    while time.monotonic() < deadline:
        lines = [line for line in run.logs() if "epoch" in line]
        for line in lines[max(printed, len(lines) - 1) :]:
            print(f"    {line}", flush=True)
        printed = len(lines)
        status = run.status()
        if status.phase in ("succeeded", "failed", "closed"):
            sys.exit(f"the run has {status.phase} too early: {status.reason}")
        steps = [int(line.split(" step ")[1].split()[0]) for line in lines if f" {nodes} ranks: " in line]
        if status.world_size == nodes and steps and max(steps) > after_step and f"round {status.round}," in lines[-1]:
            return max(steps)
        time.sleep(0.2)
    sys.exit(f"waited {timeout:g} s in vain: {what}; see {run.directory}")


def wait_for_end(run: Run) -> RunStatus:
    """Wait until the run has ended, and print its progress from time to time."""
    print("*** waiting: the training ends", flush=True)
    while True:
        try:
            return run.wait(timeout=4)
        except TimeoutError:
            print(f"    {[line for line in run.logs() if 'epoch' in line][-1]}", flush=True)


def what_happened(run: Run, killed: float) -> list[str]:
    """Return the run's timeline with the kill at the time ``killed``, and the time that the recovery took."""
    events = run.events()
    at = killed - events[0]["time"]
    lines = [*timeline(run), f"{at:8.2f} s  SIGKILL of node{VICTIM}: its agent, its workers, everything"]
    lost_in = max(event["round"] for event in events if event["event"] == "state changed" and event["time"] < killed)
    again = max(e["time"] for e in events if e["event"] == "workers started" and e["round"] == lost_in + 1)
    cost = f"{again - killed:.2f} s after the SIGKILL, the workers of round {lost_in + 1} had started"
    return [*sorted(lines, key=lambda line: float(line.split()[0])), "", cost]


def main() -> None:
    runs = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "runs"
    shutil.rmtree(runs / "demo", ignore_errors=True)
    overrides = [
        "run.name=demo",
        f"run.directory={runs}",
        "nodes=2..3",
        f"entrypoint.script={HERE / 'digits' / 'train_elastic.py'}",
        "entrypoint.args=[--epochs, 60, --step-time, 0.02]",
    ]
    paths = prepare(resolve(HERE.parent / "configs" / "digits.yaml", overrides))
    nodes, run = LocalNodes(paths, 3), Run(paths.root)
    try:
        nodes.start()
        step = wait_for(run, "three nodes train", nodes=3, after_step=0)
        print(f"*** SIGKILL of node{VICTIM}: its agent, its workers, everything", flush=True)
        killed = time.time()
        nodes.kill_node(VICTIM)
        step = wait_for(run, "the other two go on from memory", nodes=2, after_step=step)
        print(f"*** node{VICTIM} comes back", flush=True)
        nodes.start_node(VICTIM)
        wait_for(run, "three nodes train again", nodes=3, after_step=step)
        status = wait_for_end(run)
    finally:
        nodes.signal(15)
        nodes.wait()
    if status.phase != "succeeded":
        sys.exit(f"the run has {status.phase}: {status.reason}")
    accuracy = json.loads((run.directory / "result.json").read_text())["test_accuracy"]
    print("\nWhat happened:")
    print("\n".join(what_happened(run, killed)))
    print(f"\nhpcelastic why:\n{run.why()}\n\nhpcelastic goodput:\n{run.goodput()}")
    run.report().save(run.directory / "report.html")
    print(f"\ntest accuracy {accuracy:.3f}; everything that was written is in {run.directory}")
    print("report.html there shows what each node did at each time")
    if accuracy <= 0.95:
        sys.exit("the accuracy is too low")


if __name__ == "__main__":
    main()
