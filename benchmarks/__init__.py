"""Speed and memory, measured: `python -m benchmarks` prints tables and writes a JSON file."""
