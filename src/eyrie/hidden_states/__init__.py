"""Hidden states: captured once, keyed by content, checked before they are trusted."""
