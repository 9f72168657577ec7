"""Tests of the stage tokens need the node environment (numpy, pyarrow, tokenizers, jinja2)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

NODE = ("numpy", "pyarrow", "tokenizers", "jinja2")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.node)
