"""From a model's config.json to its attention geometry: data in, layer groups out; nothing in it is ever executed.

``keys`` reads values and remembers which keys it looked for. ``catalogue`` lists the families of decoders that differ
only in details; ``decoders`` reads them, with the ``patterns`` of their layers. ``latent``, ``originals``, ``encoders``
and ``towers`` read the other families. ``families`` lists all families, ``wrappers`` the models of several parts, and
``groups`` finds the family of a config. ``refusals`` says what cannot be expressed and which keys nobody looked for,
``suspicion`` looks for keys that name code, ``hub`` downloads, and ``reading`` puts everything together.
"""
