"""The YAML that people edit: pydantic models, a loader whose errors say file:line:column, JSON Schema.

::

    load      names and paths -> loaded cards; named and folders know where their files lie
    source    a file -> plain data and the place of every value, by plain_text, plain_json and plain_yaml
    problems  pydantic's errors -> sentences with a place and a next step
    kernel    matrix (with its phases)    model     waivers    canary    the kinds of card
    words     what they share
    schema    JSON Schema (draft-07) for editors
"""
