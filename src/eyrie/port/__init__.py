"""Carrying a run to another host: what is small and expensive is copied, what is large and cheap is made again."""
