"""Checks that stand before costly work: pure functions over configs and tensors."""
