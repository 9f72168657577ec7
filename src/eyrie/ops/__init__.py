"""Days of running: status, doctor, provenance, verify, retention, canary, notifications."""
