"""Benchmark: is this draft worth serving, and how do we know?"""
