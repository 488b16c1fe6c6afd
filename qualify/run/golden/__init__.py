"""The golden result in fp64, and how far from it a correct kernel of an accuracy class may be."""
