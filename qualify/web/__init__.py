"""`qualify web`: the store as a site: its pages, and what people do there.

::

    server    the process: address, signals, log
    app       the routes that read
    pages     how a page becomes routes: HTML, JSON and CSV
    actions   the routes that write, and the login
    guard     what a request passes before a route: who, how often, from where, with which right
    access    who asks: bearer tokens, sessions, loopback; jwt: tokens of a provider
    limits    rates, and requests of foreign pages
    body      bodies of requests
    site      what the routes show, read from the store
    cases     what the routes show of cases
    claims    a kernel card in words
    verdicts  verdicts of stored runs, judged once; judging: one of them; elsewhere: in a process of its own
    rendered  pages that were made, kept compressed until what they show changes
    metrics   /metrics for Prometheus
    headers   what every answer says about itself
"""
