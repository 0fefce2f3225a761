"""The three lowerings: batch, precision, model."""
