"""Judging: stored evidence, policy and waivers become a verdict, a comparison or a bisection."""
