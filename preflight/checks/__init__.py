"""The machine, the data and the facts held against the plan, finding by finding."""
