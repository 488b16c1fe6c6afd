"""`qualify web`: the stored runs' reports over HTTP, to read only.

::

    server    the process: address, signals, log
    app       the routes
    site      what the routes show, read from the store
    verdicts  verdicts of stored runs, judged once
    metrics   /metrics for Prometheus
    headers   what every answer says about itself
"""
