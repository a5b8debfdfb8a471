"""The form of rules: the regions of inputs that workers read, and the placements of results."""
