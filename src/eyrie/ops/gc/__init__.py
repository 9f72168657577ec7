"""Retention: what may be deleted because it can be made again, and what never."""
