"""The Parquet sink: a folder in which each batch is one directory, which appears whole."""
