"""The benchmark suite: thin tests on the plugin's fixtures."""
