"""What earlier runs measured, as factors of the next bill."""
