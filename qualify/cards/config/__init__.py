"""From a model's config.json to its attention geometry: data in, layer groups out; nothing in it is ever executed.

``keys`` reads values and says which it looked for, ``decoders``, ``encoders`` and ``towers`` know what the keys of each
family mean, ``families`` finds the family, ``suspicion`` looks for keys that name code, ``hub`` downloads, and
``reading`` puts it together.
"""
