"""Peak memory of one rank: states, activations, phases, and what the device adds."""
