"""The made-up host of made_host.py, for every test of this folder."""

from made_host import house

__all__ = ["house"]
