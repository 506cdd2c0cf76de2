"""``python -m hpcelastic.worker``: see `hpcelastic.worker.function`."""

import sys

from hpcelastic.worker.function import main

if __name__ == "__main__":
    sys.exit(main())
