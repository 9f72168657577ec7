"""The draft: speculators' trainer, watched, resumable, and exported as the server reads it."""
