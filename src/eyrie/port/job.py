"""`python -m eyrie.port.job FOLDER`: the supervised job that sends a pack."""

import logging
import sys
from pathlib import Path

from eyrie.port.moving import work

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    sys.exit(work(Path(sys.argv[1])))
