"""How the reference weights of pytest-ddtree were made (see README.md beside this file). Not installed."""
