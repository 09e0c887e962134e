"""What people ask about pools: what is there and costs money, and what would stop tonight's run. Nothing is changed."""
