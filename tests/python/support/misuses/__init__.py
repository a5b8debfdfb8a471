"""The table of misuses: its rows, by what is misused."""
