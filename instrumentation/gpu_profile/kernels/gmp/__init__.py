"""The interface of the document "GMP Profiler Python Wrapper": named ranges, printed results, CSV files."""
