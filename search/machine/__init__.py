"""What this machine is, what runs on it and why, and what is amiss: the facts of `isotrope doctor`."""
