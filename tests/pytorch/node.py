"""One node of a launch, as a process: ``python -m tests.pytorch.node SIDE DIRECTORY ENTRY FIELDS ARGS``.

FIELDS are those of LaunchConfig in JSON, ARGS a list. Prints the results or the error in JSON.
"""

import json
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from tests.pytorch import entries
from tests.pytorch.sides import SIDES


def main(side: str, directory: str, entry: str, fields: str, args: str) -> None:
    try:
        results = SIDES[side](Path(directory), **json.loads(fields)).launch(getattr(entries, entry), *json.loads(args))
    except ChildFailedError as error:
        root, failure = error.get_first_failure()
        print(json.dumps({"root": root, "message": failure.message["message"]}))  # type: ignore[index]  # as recorded
    except SignalException as error:
        print(json.dumps({"signal": error.sigval.name}))
    else:
        print(json.dumps({"results": results}))


if __name__ == "__main__":
    main(*sys.argv[1:])
