"""Go or no, and what would make it a go."""
