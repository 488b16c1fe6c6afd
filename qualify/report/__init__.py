"""Page contexts and what is rendered from them: one self-contained HTML file and its JSON twin.

Nothing is imported here: a gate prints its verdict without loading what renders pages.
"""
