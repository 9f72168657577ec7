"""Stage `responses`: the target's own answers, through the baseline server, none lost and none doubled."""
