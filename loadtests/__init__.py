"""Floor 3: the simulated fleet and the experiments that prove what `policies/` and `gateway/` claim."""
