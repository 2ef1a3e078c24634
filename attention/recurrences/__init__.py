"""Mechanisms that keep a running state in place of scores."""
