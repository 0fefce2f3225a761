"""Config + machine + catalog -> plan: every default and every `auto` decided once, all problems told at once."""
