"""Pictures as inline SVG, in plain arithmetic: no library, no network, no script, colours by classes of the style."""
