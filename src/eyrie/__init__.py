"""Eyrie's node package: what each stage of draft-model training does on the host."""

__version__ = "0.1.0"
