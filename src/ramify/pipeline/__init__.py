"""Everything that reads many events, on Spark: session, sources, transforms, tables, jobs."""
