"""The small core that every stage stands on: specs, fingerprints, state, locks, accounting."""
