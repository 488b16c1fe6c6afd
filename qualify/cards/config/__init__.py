"""From a model's config.json to its attention geometry: data in, layer groups out; nothing in it is ever executed.

``keys`` reads values and says which it looked for. ``catalogue`` names the decoders that differ in details, which
``decoders`` reads by the ``patterns`` of their layers; ``latent``, ``originals``, ``encoders`` and ``towers`` read the
others. ``families`` has them all, ``wrappers`` the models of several parts, and ``groups`` finds which one a config is.
``refusals`` says what cannot be expressed and which keys nobody looked for,
``suspicion`` looks for keys that name code, ``hub`` downloads, and ``reading`` puts it together.
"""
