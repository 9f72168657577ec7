"""Stage `tokens`: answers become supervised tokens, and their frequencies the draft vocabulary."""
