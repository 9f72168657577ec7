"""doctor: reads logs, state and host facts and names the cause and the cure of known failures."""
