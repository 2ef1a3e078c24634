"""From a command line to a validated config."""
