"""What finished runs have come to: tables, statistics and pictures. `train` does not know it."""
