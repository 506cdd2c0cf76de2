"""A worker that writes its environment as JSON into the given directory."""

import json
import os
import sys
from pathlib import Path

Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(dict(os.environ)))
