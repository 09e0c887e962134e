"""What machines cost and what runs may: prices, limits, budgets, bills. Pure: no request, no clock, no client."""
