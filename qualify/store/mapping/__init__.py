"""Facts to rows and back. Pure functions: a row is a dictionary going in and a mapping coming out."""
