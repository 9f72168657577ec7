"""Tests of the stage tokens need the node environment (numpy, pyarrow, tokenizers, jinja2)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
