"""From a failed finding to a script that repeats it: recorded inputs, a claim, a trial."""
