"""Report: the run's figures for machines (report.json) and for people (report.html)."""
