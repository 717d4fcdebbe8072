"""The suites as an installed plugin has them: `pytest --pyargs pytest_ddtree.suites`. In a checkout: `bench/` and `evals/`."""
