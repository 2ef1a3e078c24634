"""Loading and exporting published weights."""
