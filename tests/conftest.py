"""For all tests: property tests prove properties, not speed, so a busy machine may take its time over an example."""

from hypothesis import settings

settings.register_profile("eyrie", deadline=None)
settings.load_profile("eyrie")
