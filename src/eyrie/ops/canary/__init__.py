"""The canary: the whole chain on a few dozen prompts before the long run, and what it says is wrong."""
