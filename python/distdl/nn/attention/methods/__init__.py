"""Methods of attention over a split sequence: by heads, around a ring, or with everything gathered."""
