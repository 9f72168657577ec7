"""The dataset stage: any number of sources become one canonical conversation table."""
