"""What programs written for DistDL know, and a call of each of it."""
