"""Train with an agent in this process, like torch's `elastic_launch`.

    python examples/launch.py                                        two workers on this machine
    srun --nodes 2 --ntasks-per-node 1 python examples/launch.py --nodes 2 --runs /scratch/me/runs

Start the program once on each node. All processes take part in one run, and each gets the return values of its own
ranks. The first attempt fails on rank 1, to show the events of a failure. A program such as a dashboard registers its
own event handler in the same way.
"""

import argparse
import json
import logging
import os

from function import train
from torch.distributed.elastic.events.handlers import _log_handlers  # where torch's users register handlers
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from hpcelastic.pytorch.launch import LaunchConfig, elastic_launch


class EventPrinter(logging.Handler):
    """Prints torch's events of an agent and its workers."""

    def emit(self, record: logging.LogRecord) -> None:
        event = json.loads(record.getMessage())["metadata"]
        who = "agent" if event["global_rank"] is None else f"rank {event['global_rank']}"
        print(f"event: {who} {event['state']}, {event['agent_restarts']} restarts", flush=True)


def fails_at_first(lr: float, steps: int) -> dict[str, float]:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        raise RuntimeError("the first attempt")
    return train(lr, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="on each node")
    parser.add_argument("--restarts", type=int, default=1, help="failures to survive")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="where the run is kept; all nodes must see it")
    args = parser.parse_args()

    _log_handlers["printer"] = EventPrinter()
    config = LaunchConfig(
        min_nodes=args.nodes,
        max_nodes=args.nodes,
        nproc_per_node=args.workers,
        rdzv_endpoint=os.path.abspath(args.runs),
        max_restarts=args.restarts,
        event_log_handler="printer",
    )
    try:
        results = elastic_launch(config, fails_at_first)(0.1, 120)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise SystemExit(f"rank {rank} ended with {failure.exitcode}: {failure.message['message']}") from None
    for rank, value in results.items():
        print(f"rank {rank}: " + "y = {slope:.3f} x + {offset:.3f}, loss {loss:.1e}".format(**value))


if __name__ == "__main__":
    main()
