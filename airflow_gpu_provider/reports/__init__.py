"""Reports on pools: what is running and costs money, and what would stop tonight's run. Nothing is changed."""
