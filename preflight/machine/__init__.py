"""The only modules that look at this computer."""
