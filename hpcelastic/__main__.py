"""``python -m hpcelastic``: the same as the command ``hpcelastic``."""

import sys

from hpcelastic.cli import main

sys.exit(main())
