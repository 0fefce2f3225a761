"""What a person or a script reads: the bill in three forms, grids, and estimated against actual."""
