"""The made-up host of house.py, for every test of this folder."""

from house import house

__all__ = ["house"]
