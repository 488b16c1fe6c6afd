"""Everything that touches a device. The only package, with ``fleet``, that may import torch."""
