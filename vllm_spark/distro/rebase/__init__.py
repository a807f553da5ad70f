"""Carrying the series to another upstream release: a verdict per patch, decisions, checks, a report."""
