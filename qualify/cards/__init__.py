"""The YAML that people edit: pydantic models, a loader whose errors say file:line:column, JSON Schema.

::

    load      names and paths -> loaded cards; the only module that knows folders
    source    bytes -> plain data and the place of every value
    problems  pydantic's errors -> sentences with a place and a next step
    kernel    matrix    model     waivers    canary    the kinds of card
    words     what they share
    schema    JSON Schema (draft-07) for editors
"""
