"""What `make bench` measures: each row of docs/benchmarks.md is a function in ``rows/``."""
