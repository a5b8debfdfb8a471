"""Plans: placements of the values of a recording, redistributions between them, and estimates of costs."""
