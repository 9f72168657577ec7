"""The target (verifier) model on the host: converted, downloaded or checked once, then trusted by checksum."""
