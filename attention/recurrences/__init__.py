"""Mechanisms that keep a running state instead of scores."""
