"""One module for each check. ``interface`` defines what a check is; ``registry`` lists the checks in running order."""
