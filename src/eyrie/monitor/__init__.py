"""Monitoring: the stages' progress for Prometheus, and the programs that watch (optional, off by default)."""
