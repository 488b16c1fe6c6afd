"""Places cases on devices and files what comes back."""
