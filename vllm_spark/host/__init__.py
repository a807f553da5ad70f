"""What owners run to look at their machine and to prove that its output is right."""
