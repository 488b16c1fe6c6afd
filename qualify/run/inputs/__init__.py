"""Input tensors: the distributions, how they are drawn and kept, and parts of a call."""
