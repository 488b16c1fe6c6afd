"""Pure policy: outcomes in, verdicts and an exit code out. No device, no database, no clock."""
