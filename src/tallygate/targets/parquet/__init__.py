"""A folder of Parquet files as a target."""
