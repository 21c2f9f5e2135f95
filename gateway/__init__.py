"""Floor 2: the shell. Moves bytes between clients and engines and asks `policies/` what to do."""
