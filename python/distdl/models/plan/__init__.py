"""Plans: where each value of a recording is, the exchanges between, and estimates of their costs."""
