"""Alerts leave the outbox, at least once.

::

    postman      the loop: takes what is due, tells each target, files what became of it
    delivery     one attempt over HTTP, within one deadline
    formats      what a webhook, Slack and Alertmanager are sent
    signing      the signature of Standard Webhooks
    credentials  addresses and secrets, from files and environment variables only
    guard        which addresses an alert may be sent to
    undelivered  why an attempt did not succeed
"""
