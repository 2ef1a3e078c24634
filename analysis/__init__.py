"""Reports, statistics and pictures of finished runs."""

import train  # noqa: F401 (first, since it decides what Ctrl-C does while other packages are imported)
